# Writes OUTPUT: the program's version, commit, compiler and libraries. A file that would not change is left alone, so that nothing is
# compiled anew. Sources without git, or inside somebody else's repository, have no commit unless COMMIT says it.
set(commit "${COMMIT}")
find_program(GIT git)
if(GIT AND NOT commit)
  execute_process(COMMAND ${GIT} -C ${SOURCE} rev-parse --show-prefix HEAD OUTPUT_VARIABLE answer ERROR_QUIET
                  RESULT_VARIABLE code)
  if(code EQUAL 0 AND answer MATCHES "^\n([0-9a-f]+)\n$")  # no prefix: this is the top of the repository
    string(SUBSTRING ${CMAKE_MATCH_1} 0 12 commit)
    execute_process(COMMAND ${GIT} --no-optional-locks -C ${SOURCE} diff-index --quiet HEAD RESULT_VARIABLE code
                    OUTPUT_QUIET ERROR_QUIET)
    if(NOT code EQUAL 0)
      string(APPEND commit " with changes")
    endif()
  endif()
endif()
if(NOT commit)
  set(commit "unknown")
endif()
set(text "#include \"core/build_info.h\"

namespace kintsugi {

std::string_view program_version() { return \"${VERSION}\"; }
std::string_view program_commit() { return \"${commit}\"; }
std::string_view program_compiler() { return \"${COMPILER}\"; }
std::string_view program_libraries() { return \"${LIBRARIES}\"; }
std::string_view program_left_out() { return \"${LEFT_OUT}\"; }

}  // namespace kintsugi
")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} before)
endif()
if(NOT "${before}" STREQUAL "${text}")
  file(WRITE ${OUTPUT} "${text}")
endif()
