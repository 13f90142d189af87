#pragma once

#include <string_view>

namespace kintsugi {

// src/report/explore/page.html with its scripts, and with the style sheet and the first scripts of
// the dashboard's page (src/report/page), as page_html() is made.
std::string_view explore_page_html();

}  // namespace kintsugi
