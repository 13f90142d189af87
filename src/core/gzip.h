#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kintsugi {

// Returns whether the bytes begin as a gzip file does.
bool is_gzip(std::string_view bytes);
std::string gzipped(std::string_view text);
// `source` is named in errors: UserError if the bytes are damaged, or longer than `limit` when
// unpacked, for which `remedy` says what to do.
std::string gunzipped(std::string_view bytes, std::size_t limit, std::string_view source,
                      std::string_view remedy = "use a smaller file");

}  // namespace kintsugi
