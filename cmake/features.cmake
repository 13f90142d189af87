# The optional parts of the program: kintsugi_feature() records one, kintsugi_report_features() shows the table at the end of
# configuring and keeps it in features.txt. KINTSUGI_LEFT_OUT is for kintsugi --version.
set(KINTSUGI_FEATURES "")
set(KINTSUGI_LEFT_OUT "")

# kintsugi_feature(NAME FOUND BUILT_WITH WITHOUT): what a part is built with, or what the program cannot do without it.
function(kintsugi_feature name found with without)
  string(REPLACE ";" " " with "${with}")
  string(SUBSTRING "${name}                " 0 15 label)
  if(found)
    list(APPEND KINTSUGI_FEATURES "  ${label}yes  ${with}")
  else()
    list(APPEND KINTSUGI_FEATURES "  ${label}NO   ${without}")
    list(APPEND KINTSUGI_LEFT_OUT "${name}")
  endif()
  set(KINTSUGI_FEATURES "${KINTSUGI_FEATURES}" PARENT_SCOPE)
  set(KINTSUGI_LEFT_OUT "${KINTSUGI_LEFT_OUT}" PARENT_SCOPE)
endfunction()

function(kintsugi_report_features)
  list(JOIN KINTSUGI_FEATURES "\n" rows)
  set(table "kintsugi ${PROJECT_VERSION}, optional parts:\n${rows}\n")
  file(WRITE ${CMAKE_BINARY_DIR}/features.txt "${table}")
  message(STATUS "${table}")
endfunction()
