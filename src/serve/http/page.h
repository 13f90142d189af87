#pragma once

#include <string_view>

namespace kintsugi {

// src/serve/http/page.html, embedded by CMake.
std::string_view serve_page_html();

}  // namespace kintsugi
