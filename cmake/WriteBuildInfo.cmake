execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12
  OUTPUT_VARIABLE COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT COMMIT)
  set(COMMIT "unknown commit")
endif()
string(CONCAT text
  "#pragma once\n"
  "#define TESSERA_VERSION \"${VERSION}\"\n"
  "#define TESSERA_COMMIT \"${COMMIT}\"\n"
  "#define TESSERA_COMPILER \"${COMPILER}\"\n"
  "#define TESSERA_SANITIZERS \"${SANITIZERS}\"\n")
set(old "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} old)
endif()
if(NOT old STREQUAL text)
  file(WRITE ${OUTPUT} "${text}")
endif()
