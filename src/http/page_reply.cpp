#include "http/page_reply.h"

#include <fmt/format.h>

#include <random>

namespace kintsugi {

HttpReply page_reply(std::string_view html) {
  // Scripts and styles run only with this number, so that no text in the page can bring its own.
  std::random_device device;
  const std::string nonce =
      fmt::format("{:08x}{:08x}{:08x}{:08x}", device(), device(), device(), device());
  std::string page(html);
  const std::string_view mark = "NONCE";
  for (std::size_t at = page.find(mark); at != page.npos; at = page.find(mark, at + nonce.size()))
    page.replace(at, mark.size(), nonce);
  return {
      .body = std::move(page),
      .content_type = "text/html; charset=utf-8",
      .headers = {{"Content-Security-Policy",
                   fmt::format("default-src 'none'; script-src 'nonce-{0}'; style-src 'nonce-{0}'; "
                               "connect-src 'self'; img-src data:; base-uri 'none'; "
                               "form-action 'none'; frame-ancestors 'none'",
                               nonce)},
                  {"X-Content-Type-Options", "nosniff"},
                  {"Referrer-Policy", "no-referrer"},
                  {"Cache-Control", "no-store"}}};
}

}  // namespace kintsugi
