#pragma once

#include <string_view>

#include "serve/http/http_message.h"

namespace kintsugi {

// src/serve/http/page.html, embedded by CMake.
std::string_view page_html();

// The page, with headers that keep it from loading anything or being framed.
HttpReply page_reply();

}  // namespace kintsugi
