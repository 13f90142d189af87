#pragma once

#include <string_view>

namespace kintsugi {

// src/report/page/page.html with its styles and scripts, joined and embedded by CMake. "NONCE"
// stands where each style and script needs the number of the page (http/http_handler.h).
std::string_view page_html();

}  // namespace kintsugi
