#pragma once

#include "http/connection.h"
#include "http/http_message.h"

namespace kintsugi {

// How a reply is sent.
struct ReplyForm {
  bool close = false;     // the client is told that the connection ends
  bool with_body = true;  // false: to a HEAD
  bool in_chunks = true;  // for streams; false: the stream ends with the connection
};

// The status line and the headers, with the empty line at the end.
std::string reply_head(const HttpReply& reply, const ReplyForm& form);

// False if the client did not take all of it.
bool send_reply(Connection& connection, const HttpReply& reply, const ReplyForm& form);

}  // namespace kintsugi
