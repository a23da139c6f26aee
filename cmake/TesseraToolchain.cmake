# Compiler settings that hold for every target.
# psabi: vectors never cross a function's boundary that is not inlined.
# missing-field-initializers: options structs with designated initialisers leave fields out on purpose.
add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-Wno-psabi;-Wall;-Wextra;-Wpedantic;-Wshadow;-Wno-unused-parameter;\
-Wno-missing-field-initializers>")
# Sources that are compiled together see each other's names.
if(CMAKE_UNITY_BUILD)
  add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-Wno-shadow;-Wno-subobject-linkage>")
endif()
# What is found ends the program: undefined behaviour would only be printed otherwise, and no test would fail.
if(TESSERA_SANITIZE)
  add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=${TESSERA_SANITIZE};\
-fno-sanitize-recover=all;-fno-omit-frame-pointer>")
  add_link_options(-fsanitize=${TESSERA_SANITIZE})
endif()

find_program(TESSERA_CCACHE ccache)
if(TESSERA_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # What ccache wants to know before it works with precompiled headers, and so that it knows a clone from another one's
  # compilations.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros
    CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=true ${TESSERA_CCACHE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
  endif()
endif()
