# cmake --install BUILD --prefix DIR (DESTDIR is honoured): the program, its man page, shell completions, documents and examples.
include(GNUInstallDirs)
set(reference ${CMAKE_BINARY_DIR}/reference)
add_custom_command(
  OUTPUT ${reference}/kintsugi.1 ${reference}/kintsugi ${reference}/_kintsugi
  COMMAND ${CMAKE_COMMAND} -E make_directory ${reference}
  COMMAND kintsugi completion man > ${reference}/kintsugi.1
  COMMAND kintsugi completion bash > ${reference}/kintsugi
  COMMAND kintsugi completion zsh > ${reference}/_kintsugi
  DEPENDS kintsugi
  COMMENT "Writing the man page and the shell completions"
  VERBATIM)
add_custom_target(reference ALL DEPENDS ${reference}/kintsugi.1)

install(TARGETS kintsugi RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(FILES ${reference}/kintsugi.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${reference}/kintsugi DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(FILES ${reference}/_kintsugi DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/examples DESTINATION ${CMAKE_INSTALL_DATADIR}/kintsugi)
file(GLOB documents ${CMAKE_SOURCE_DIR}/docs/*.md ${CMAKE_SOURCE_DIR}/docs/*.svg)
install(FILES ${documents} ${CMAKE_SOURCE_DIR}/README.md ${CMAKE_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
