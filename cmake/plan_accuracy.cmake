# plan_accuracy: the planner against measurements of other programs, whose descriptions are compiled into it and not into kintsugi.
# Built with the tests, or alone: cmake --build build --target plan_accuracy.
embed_yaml(tools/plan_accuracy/programs plan_accuracy/embedded.h EmbeddedDescription embedded_programs)
embed_yaml(tools/plan_accuracy/machines plan_accuracy/embedded.h EmbeddedDescription embedded_measured_machines)
add_library(kintsugi_plan_accuracy STATIC ${CMAKE_BINARY_DIR}/embedded_programs.cpp ${CMAKE_BINARY_DIR}/embedded_measured_machines.cpp)
kintsugi_sources(kintsugi_plan_accuracy tools/plan_accuracy EXCLUDE "/main\\.cpp" OPTIONS -O1)
target_include_directories(kintsugi_plan_accuracy PUBLIC tools)
target_link_libraries(kintsugi_plan_accuracy PUBLIC kintsugi_engine PRIVATE yaml-cpp::yaml-cpp)
add_executable(plan_accuracy tools/plan_accuracy/main.cpp)
target_link_libraries(plan_accuracy PRIVATE kintsugi_plan_accuracy CLI11::CLI11 yaml-cpp::yaml-cpp)
if(NOT KINTSUGI_TESTS)
  set_target_properties(kintsugi_plan_accuracy plan_accuracy PROPERTIES EXCLUDE_FROM_ALL TRUE)
endif()
