add_executable(bench_exchange exchange.cpp)
target_link_libraries(bench_exchange PRIVATE tessera_comm tessera_runtime ${TESSERA_FMT} nlohmann_json::nlohmann_json)
