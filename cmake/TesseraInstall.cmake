# cmake --install: the program, the libraries, the headers, and a package for find_package(tessera).
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

get_property(rooms GLOBAL PROPERTY TESSERA_ROOMS)

# tessera::tessera is all of it: the whole program as a function, and every room.
add_library(tessera_all INTERFACE)
add_library(tessera::tessera ALIAS tessera_all)
target_link_libraries(tessera_all INTERFACE tessera_app ${rooms})
target_compile_features(tessera_all INTERFACE cxx_std_20)
if(TESSERA_SANITIZE)  # a sanitized library links only into a sanitized program
  target_compile_options(tessera_all INTERFACE -fsanitize=${TESSERA_SANITIZE})
  target_link_options(tessera_all INTERFACE -fsanitize=${TESSERA_SANITIZE})
endif()

# In the package the room base is tessera::base, and so on.
foreach(target ${rooms} tessera_app tessera_torch)
  string(REGEX REPLACE "^tessera_" "" short ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${short})
endforeach()
set_target_properties(tessera_all PROPERTIES EXPORT_NAME tessera)
# A torch outside the system's folders is found by the installed program, too.
set_target_properties(tessera PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)

install(TARGETS tessera RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS tessera_all tessera_app tessera_torch ${rooms} EXPORT tessera
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
# What networks and operations outside of the tree are written with; all other headers are Tessera's own.
set(public_headers base/error.h base/random.h geometry/box.h geometry/window.h models/registry.h
  program/program.h ops/kernel.h ops/slab.h oracle/reference.h)
foreach(header ${public_headers})
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES src/tessera/${header} DESTINATION include/tessera/${folder})
endforeach()
install(DIRECTORY src/tessera/graph DESTINATION include/tessera FILES_MATCHING PATTERN "*.h")
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY apps/tessera/include/tessera DESTINATION include FILES_MATCHING PATTERN "*.h")

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/tessera)
install(EXPORT tessera NAMESPACE tessera:: FILE tesseraTargets.cmake DESTINATION ${package_folder})
configure_package_config_file(cmake/tesseraConfig.cmake.in ${CMAKE_BINARY_DIR}/package/tesseraConfig.cmake
  INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/package/tesseraConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/package/tesseraConfig.cmake ${CMAKE_BINARY_DIR}/package/tesseraConfigVersion.cmake
  DESTINATION ${package_folder})
