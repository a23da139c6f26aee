add_executable(bench_exchange exchange.cpp)
target_link_libraries(bench_exchange PRIVATE tessera_comm tessera_runtime fmt::fmt-header-only nlohmann_json::nlohmann_json)
