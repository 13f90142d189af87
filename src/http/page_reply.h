#pragma once

#include <string_view>

#include "http/http_message.h"

namespace kintsugi {

// A page, with headers that keep it from loading anything or being framed. "NONCE" in it becomes a
// new number: only scripts and styles with that number run.
HttpReply page_reply(std::string_view html);

}  // namespace kintsugi
