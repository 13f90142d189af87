#include "http/http_server.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>

#include "core/error.h"
#include "core/log.h"
#include "http/http_reader.h"
#include "http/listener.h"

namespace kintsugi {
namespace {

// How a reply is sent.
struct ReplyForm {
  bool close = false;     // the client is told that the connection ends
  bool with_body = true;  // false: to a HEAD
  bool in_chunks = true;  // for streams; false: the stream ends with the connection
};

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

// The status line and the headers, with the empty line at the end.
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

// False if the client did not take all of it.
bool send_reply(Connection& connection, const HttpReply& reply, const ReplyForm& form) {
  bool sent = write(connection, reply_head(reply, form));
  if (form.with_body && reply.stream)
    sent = sent && send_stream(connection, reply, form.in_chunks);
  else if (form.with_body && !reply.body.empty())
    sent = sent && write(connection, reply.body);
  return connection.flush() && sent;
}

// A request from when its header was read until its reply was sent.
class BusyCount {
 public:
  explicit BusyCount(std::atomic<std::int64_t>& count) : count_(count) { ++count_; }
  ~BusyCount() { --count_; }
  BusyCount(const BusyCount&) = delete;
  BusyCount& operator=(const BusyCount&) = delete;

 private:
  std::atomic<std::int64_t>& count_;
};

// Reads the requests of connections and answers them.
class HttpProtocol {
 public:
  HttpProtocol(HttpHandler& service, std::size_t max_body)
      : service_(service), max_body_(max_body) {}

  // Until the connection ends.
  void serve(Connection& connection) {
    while (!connection.closing() && connection.wait_for_request() && answer_next(connection)) {
    }
  }
  std::int64_t busy() const { return busy_; }  // requests whose reply has not been sent

 private:
  // False: the connection has ended.
  bool answer_next(Connection& connection) {
    connection.begin_headers();
    HttpReader reader(connection, max_body_);
    ReplyForm form{.close = true};
    std::optional<BusyCount> busy;
    HttpReply reply;
    try {
      const std::optional<HttpHead> head = reader.head();
      if (!head) return false;
      busy.emplace(busy_);
      form = {.close = !head->persistent,
              .with_body = head->method != "HEAD",
              .in_chunks = head->chunks};
      reply = reply_to(*head, reader, connection);
    } catch (const HttpError& error) {  // the rest of the request has not been read
      connection.set_closing();
      reply = error_reply(error);
    }
    form.close = form.close || connection.closing() || service_.draining();
    return send_reply(connection, reply, form) && !form.close;
  }

  HttpReply reply_to(const HttpHead& head, HttpReader& reader, Connection& connection) {
    HttpRequest request = head.request();
    const bool refused = service_.refusal(request).has_value();
    const std::optional<HttpError> wrong = reader.wrong_body(head);
    if (wrong && !refused) throw *wrong;
    if (head.method == "POST" && !refused)
      request.body = reader.body(head);
    else if (head.has_body())
      connection.set_closing();  // what needs no body is answered without reading it
    return service_.handle(request, [&connection] { return connection.gone(); });
  }

  HttpHandler& service_;
  std::size_t max_body_;
  std::atomic<std::int64_t> busy_ = 0;
};

// For a connection too many.
std::string busy_text() {
  const HttpReply reply =
      error_reply(HttpError(503, "too_many_connections", "too many connections; try again"));
  return reply_head(reply, {.close = true}) + reply.body;
}

}  // namespace

struct HttpServer::State {
  State(HttpHandler& given, const HttpServerOptions& given_options)
      : service(given),
        options(given_options),
        listener(given_options.host, given_options.port),
        protocol(given, given_options.connection.max_body) {}

  void accept_all() {
    while (!ending) {
      const int socket = listener.accept(100);
      if (socket < 0) continue;
      {
        const std::lock_guard lock(mutex);
        ++connections;
      }
      try {
        if (connections > options.max_connections) throw std::system_error();
        std::thread([this, socket] { serve(socket); }).detach();
      } catch (const std::exception&) {  // also if there are no more threads or no memory
        ::send(socket, busy_reply.data(), busy_reply.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
        ::close(socket);
        leave();
      }
    }
  }
  void serve(int socket) {
    {
      Connection connection(socket, options.connection, ending);
      try {
        protocol.serve(connection);
      } catch (const std::exception& error) {  // ends this connection, not the process
        log_warning("a connection was ended: {}", error.what());
      }
    }
    leave();
  }
  void leave() {
    const std::lock_guard lock(mutex);
    --connections;
    changed.notify_all();  // under the lock: this object may be gone after it
  }

  HttpHandler& service;
  HttpServerOptions options;
  HttpListener listener;
  HttpProtocol protocol;
  const std::string busy_reply = busy_text();  // written beforehand: memory may be short then
  std::mutex mutex;
  std::condition_variable changed;
  std::atomic<std::int64_t> connections = 0;
  std::atomic<bool> ending = false;
  std::thread accepting;
};

HttpServer::HttpServer(HttpHandler& service, const HttpServerOptions& options)
    : state_(std::make_unique<State>(service, options)) {
  service.set_connections([state = state_.get()] { return state->connections.load(); });
  is_local() ? service.set_local_host(options.host)
             : service.set_public_hosts(names_of_machine(options.host));
  state_->accepting = std::thread([state = state_.get()] { state->accept_all(); });
}

HttpServer::~HttpServer() {
  shutdown(0);
  state_->service.set_connections([] { return 0; });
}

int HttpServer::port() const { return state_->listener.port(); }
std::string HttpServer::address() const { return state_->listener.address(); }
bool HttpServer::is_local() const { return state_->listener.is_local(); }
std::int64_t HttpServer::connections() const { return state_->connections; }

bool HttpServer::shutdown(double timeout_s) {
  using Clock = std::chrono::steady_clock;
  state_->service.drain();
  const auto deadline = Clock::now() + std::chrono::duration<double>(timeout_s);
  while (state_->protocol.busy() > 0 && Clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const bool finished = state_->protocol.busy() == 0;
  state_->service.abort();
  state_->ending = true;
  if (state_->accepting.joinable()) state_->accepting.join();
  state_->listener.close();
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [this] { return state_->connections == 0; });
  return finished;
}

}  // namespace kintsugi
