# Tests that run under mpirun (label mpi): tests/mpi/mpi_check.cpp with several ranks.
add_executable(mpi_check ${CMAKE_SOURCE_DIR}/tests/mpi/mpi_check.cpp
                         ${CMAKE_SOURCE_DIR}/tests/support/collective_cases.cpp)
target_include_directories(mpi_check PRIVATE ${CMAKE_SOURCE_DIR}/tests)
target_compile_options(mpi_check PRIVATE -O1)
target_link_libraries(mpi_check PRIVATE kintsugi_engine)
