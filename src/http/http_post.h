#pragma once

#include <string>
#include <string_view>

namespace kintsugi {

// http://HOST[:PORT][/PATH]
struct HttpAddress {
  std::string host, port, path;
};
// UserError for anything else, with the remedy for https.
HttpAddress parse_http_address(const std::string& url);

// Posts a body and returns the status of the answer (200, 404, …). Failure if there is none within
// the time.
int http_post(const HttpAddress& to, std::string_view content_type, std::string_view body,
              double timeout_s);

}  // namespace kintsugi
