# Tests that run under mpirun (label mpi): tests/mpi/mpi_check.cpp with several ranks.
add_executable(mpi_check ${CMAKE_SOURCE_DIR}/tests/mpi/mpi_check.cpp
                         ${CMAKE_SOURCE_DIR}/tests/support/collective_cases.cpp)
target_include_directories(mpi_check PRIVATE ${CMAKE_SOURCE_DIR}/tests)
target_compile_options(mpi_check PRIVATE -O1)
target_compile_definitions(mpi_check PRIVATE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
target_link_libraries(mpi_check PRIVATE kintsugi_engine MPI::MPI_C)

# More ranks than cores, as root in a container: whatever the machine.
set(KINTSUGI_MPI_TEST_ENVIRONMENT OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1)

# What must end well, or else with words that match `expected` and an exit code that does; a hang is cut off.
function(kintsugi_mpi_test what ranks expected exit_code)
  string(JOIN " " command ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks} $<TARGET_FILE:mpi_check> ${what})
  add_test(NAME mpi.${what}.${ranks} COMMAND sh -c "${command} 2>&1; echo exit code $?")
  set_tests_properties(mpi.${what}.${ranks} PROPERTIES LABELS mpi PROCESSORS 2 TIMEOUT 30
    ENVIRONMENT "${KINTSUGI_MPI_TEST_ENVIRONMENT}"
    PASS_REGULAR_EXPRESSION "${expected}.*exit code ${exit_code}"
    FAIL_REGULAR_EXPRESSION "got through a barrier")
endfunction()

foreach(ranks 2 3 8)
  kintsugi_mpi_test(collectives ${ranks} "passed on ${ranks} ranks" 0)
endforeach()
kintsugi_mpi_test(blocks 2 "passed on 2 ranks" 0)
kintsugi_mpi_test(control 4 "passed on 4 ranks" 0)
kintsugi_mpi_test(overlap 3 "passed on 3 ranks" 0)
kintsugi_mpi_test(grid 8 "passed on 8 ranks" 0)
kintsugi_mpi_test(mismatch 3
  "REPORT: rank [0-9]: group dp, call [0-9]+: rank 2 .2 in the group. calls broadcast of 12 fp32 from 0, but rank 0 and 1 more call all_reduce .sum. of 12 fp32" 1)
kintsugi_mpi_test(throw 3 "REPORT: rank 2: the disk is full" 1)
kintsugi_mpi_test(user 3 "REPORT: rank 2: batch.micro is odd" 2)
kintsugi_mpi_test(throw-first 3 "REPORT: rank 0: the disk is full" 1)
# mpirun ends with 128 + the signal when it sees that first, or with the exit code of the ranks that noticed.
kintsugi_mpi_test(abort 3 "REPORT: rank 2 was lost" "[1-9]")
kintsugi_mpi_test(kill 8 "REPORT: rank 7 was lost" "[1-9]")
kintsugi_mpi_test(exit 3 "REPORT: rank 2 was lost" "[1-9]")
kintsugi_mpi_test(kill-first 3 "END: rank 0 was lost" "[1-9]")
