# Tests that run under mpirun on a machine with a GPU (label nccl): tests/gpu/nccl_check.cpp with several ranks, which
# share the GPU where there are not enough.
add_executable(nccl_check ${CMAKE_SOURCE_DIR}/tests/gpu/nccl_check.cpp
                          ${CMAKE_SOURCE_DIR}/tests/support/collective_cases.cpp)
target_include_directories(nccl_check PRIVATE ${CMAKE_SOURCE_DIR}/tests)
target_compile_options(nccl_check PRIVATE -O1)
target_link_libraries(nccl_check PRIVATE kintsugi_engine)

# Random layouts against one rank: mpirun -np 4 nccl_layouts COUNT SEED
add_executable(nccl_layouts ${CMAKE_SOURCE_DIR}/tests/gpu/nccl_layouts.cpp)
target_compile_options(nccl_layouts PRIVATE -O1)
target_link_libraries(nccl_layouts PRIVATE kintsugi_test_support)

if(NOT EXISTS /dev/nvidiactl)
  return()
endif()

function(kintsugi_nccl_test what ranks expected exit_code)
  string(JOIN " " command ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks} $<TARGET_FILE:nccl_check> ${what})
  add_test(NAME nccl.${what}.${ranks} COMMAND sh -c "${command} 2>&1; echo exit code $?")
  set_tests_properties(nccl.${what}.${ranks} PROPERTIES LABELS nccl RUN_SERIAL TRUE TIMEOUT 300
    ENVIRONMENT "${KINTSUGI_MPI_TEST_ENVIRONMENT};NCCL_SOCKET_IFNAME=lo;NCCL_IB_DISABLE=1"
    PASS_REGULAR_EXPRESSION "${expected}.*exit code ${exit_code}"
    FAIL_REGULAR_EXPRESSION "got through a barrier")
endfunction()

foreach(ranks 2 3)
  kintsugi_nccl_test(collectives ${ranks} "passed on ${ranks} ranks" 0)
endforeach()
kintsugi_nccl_test(grid 4 "passed on 4 ranks" 0)
kintsugi_nccl_test(behind 2 "passed on 2 ranks" 0)
kintsugi_nccl_test(pipeline 3 "passed on 3 ranks" 0)
kintsugi_nccl_test(hang 3
  "REPORT: rank [01]: group dp#[0-9]+: all_reduce number 2 did not finish within 8 s on rank [01]; it was not called by rank 2 .after 1 calls" 1)
kintsugi_nccl_test(mismatch 3 
  "REPORT: rank [012]: group dp, call 1: rank 2 .2 in the group. calls all_reduce .sum. of 999 fp32, but rank 0 and 1 more call all_reduce .sum. of 1000" 1)
kintsugi_nccl_test(throw 3 "REPORT: rank 2: the disk is full" 1)
kintsugi_nccl_test(kill 3 "REPORT: rank 2 was lost" "[1-9]")
