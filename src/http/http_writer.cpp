#include "http/http_writer.h"

#include <fmt/format.h>

#include "core/error.h"

namespace kintsugi {
namespace {

struct Reason {
  int status;
  const char* text;
};
constexpr Reason kReasons[] = {
    {200, "OK"},
    {204, "No Content"},
    {400, "Bad Request"},
    {401, "Unauthorized"},
    {403, "Forbidden"},
    {404, "Not Found"},
    {405, "Method Not Allowed"},
    {408, "Request Timeout"},
    {411, "Length Required"},
    {413, "Content Too Large"},
    {415, "Unsupported Media Type"},
    {417, "Expectation Failed"},
    {429, "Too Many Requests"},
    {431, "Request Header Fields Too Large"},
    {500, "Internal Server Error"},
    {501, "Not Implemented"},
    {503, "Service Unavailable"},
    {504, "Gateway Timeout"},
    {505, "HTTP Version Not Supported"},
};

const char* reason_of(int status) {
  for (const Reason& reason : kReasons)
    if (reason.status == status) return reason.text;
  return "";  // clients look at the number
}

bool write(Connection& connection, std::string_view text) {
  return connection.write(text.data(), text.size()) >= 0;
}

bool send_stream(Connection& connection, const HttpReply& reply, bool in_chunks) {
  bool sent = true;
  reply.stream([&](std::string_view piece) {
    if (piece.empty()) return sent;  // an empty chunk would be the last
    sent =
        sent && (in_chunks ? write(connection, fmt::format("{:x}\r\n{}\r\n", piece.size(), piece))
                           : write(connection, piece));
    return sent;
  });
  return sent && (!in_chunks || write(connection, "0\r\n\r\n"));
}

}  // namespace

std::string reply_head(const HttpReply& reply, const ReplyForm& form) {
  std::string text = fmt::format("HTTP/1.1 {} {}\r\n", reply.status, reason_of(reply.status));
  const auto add = [&](std::string_view name, std::string_view value) {
    KINTSUGI_CHECK(value.find_first_of("\r\n") == value.npos, "a header {} of two lines", name);
    text += fmt::format("{}: {}\r\n", name, value);
  };
  for (const auto& [name, value] : reply.headers) add(name, value);
  if (reply.status != 204) {
    add("Content-Type", reply.content_type);
    if (!reply.stream) add("Content-Length", std::to_string(reply.body.size()));
    if (reply.stream && form.in_chunks) add("Transfer-Encoding", "chunked");
  }
  if (form.close) add("Connection", "close");
  return text + "\r\n";
}

bool send_reply(Connection& connection, const HttpReply& reply, const ReplyForm& form) {
  bool sent = write(connection, reply_head(reply, form));
  if (form.with_body && reply.stream)
    sent = sent && send_stream(connection, reply, form.in_chunks);
  else if (form.with_body && !reply.body.empty())
    sent = sent && write(connection, reply.body);
  return connection.flush() && sent;
}

}  // namespace kintsugi
