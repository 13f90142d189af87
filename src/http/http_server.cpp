#include "http/http_server.h"

#include <httplib.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

#include "core/log.h"
#include "http/listener.h"

namespace kintsugi {
namespace {

constexpr const char* kBusyReply =
    "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
    "Connection: close\r\nContent-Length: 107\r\n\r\n"
    "{\"error\":{\"message\":\"too many connections; try again\",\"type\":\"server_error\","
    "\"code\":\"too_many_connections\"}}";

// How cpp-httplib reads and writes.
class ConnectionStream : public httplib::Stream {
 public:
  explicit ConnectionStream(Connection& connection) : connection_(connection) {}
  bool is_readable() const override { return connection_.readable(); }
  bool is_writable() const override { return !connection_.gone(); }
  ssize_t read(char* data, size_t size) override { return connection_.read(data, size); }
  ssize_t write(const char* data, size_t size) override { return connection_.write(data, size); }
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  socket_t socket() const override { return connection_.socket(); }

 private:
  Connection& connection_;
};

// The connection that this thread serves.
thread_local Connection* current_connection = nullptr;

// Counts a request from when it is begun until the end of the scope, also after an exception.
class BusyCount {
 public:
  explicit BusyCount(std::atomic<std::int64_t>& count) : count_(count) {}
  ~BusyCount() { count_ -= begun_; }
  BusyCount(const BusyCount&) = delete;
  BusyCount& operator=(const BusyCount&) = delete;
  void begin() {
    ++count_;
    ++begun_;
  }

 private:
  std::atomic<std::int64_t>& count_;
  std::int64_t begun_ = 0;
};

HttpRequest plain_request(const httplib::Request& request) {
  return {.method = request.method,
          .path = request.path,
          .authorization = request.get_header_value("Authorization"),
          .origin = request.get_header_value("Origin"),
          .host = request.get_header_value("Host"),
          .query = {request.params.begin(), request.params.end()}};
}

void send_reply(HttpReply reply, httplib::Response& response) {
  response.status = reply.status;
  for (const auto& [name, value] : reply.headers) response.set_header(name, value);
  if (!reply.stream) return response.set_content(std::move(reply.body), reply.content_type);
  response.set_chunked_content_provider(
      reply.content_type, [stream = std::move(reply.stream)](size_t, httplib::DataSink& sink) {
        stream([&](std::string_view piece) { return sink.write(piece.data(), piece.size()); });
        sink.done();
        return true;
      });
}

// Parses requests and writes replies; sockets and routes are not its own.
class HttpProtocol : public httplib::Server {
 public:
  HttpProtocol(HttpHandler& service, int listening, std::size_t max_body)
      : service_(service), max_body_(max_body) {
    svr_sock_ = listening;  // without one it does not write streams
    set_payload_max_length(max_body);
    set_keep_alive_max_count(SIZE_MAX);
    set_pre_routing_handler([this](const auto& request, auto& response) {
      return before_body(request, response) ? HandlerResponse::Handled : HandlerResponse::Unhandled;
    });
    Post(".*", [this](const auto& request, auto& response, const auto& reader) {
      with_body(request, response, reader);
    });
    set_post_routing_handler([](const auto&, auto& response) {
      response.headers.erase("Keep-Alive");
      response.headers.erase("Accept-Ranges");
      if (current_connection->closing()) response.set_header("Connection", "close");
    });
    set_error_handler([](const auto&, httplib::Response& response) {
      if (!response.body.empty()) return;
      current_connection->set_closing();
      send_reply(error_reply(HttpError(response.status, "bad_request", "not a valid HTTP request")),
                 response);
    });
    set_exception_handler([](const auto& request, auto& response, std::exception_ptr thrown) {
      current_connection->set_closing();
      send_reply(error_reply(internal_error(request, thrown)), response);
    });
  }

  // Answers requests until the connection ends.
  void serve(Connection& connection) {
    current_connection = &connection;
    ConnectionStream stream(connection);
    bool closed = false;
    while (!closed && !connection.closing() && connection.wait_for_request()) {
      connection.begin_headers();
      BusyCount busy(busy_);
      const bool answered =
          process_request(stream, service_.draining(), closed, [&](httplib::Request& request) {
            request.ranges.clear();  // replies are not cut, nor parts of them repeated
            connection.begin_body();
            busy.begin();
          });
      closed = !connection.flush() || !answered || closed;
    }
    current_connection = nullptr;
  }
  std::int64_t busy() const { return busy_; }  // requests whose reply has not been sent

 private:
  static HttpError internal_error(const httplib::Request& request, std::exception_ptr thrown) {
    std::string reason = "unknown error";
    try {
      std::rethrow_exception(thrown);
    } catch (const std::exception& error) {
      reason = error.what();
    } catch (...) {
    }
    log_warning("{} {}: {}", printable(request.method), printable(request.path), reason);
    return {500, "internal_error", reason};
  }
  static std::function<bool()> client_has_left() {
    return [connection = current_connection] { return connection->gone(); };
  }
  static bool has_body(const httplib::Request& request) {
    return request.has_header("Content-Length") || request.has_header("Transfer-Encoding");
  }
  // What is wrong with the headers that describe the body.
  std::optional<HttpError> wrong_body(const httplib::Request& request) const {
    const std::string length = request.get_header_value("Content-Length");
    const std::size_t codings = request.get_header_value_count("Transfer-Encoding");
    if (request.get_header_value_count("Content-Length") + codings > 1)
      return HttpError(400, "bad_request", "a body has one Content-Length or is chunked");
    if (codings == 1 &&
        ::strcasecmp(request.get_header_value("Transfer-Encoding").c_str(), "chunked") != 0)
      return HttpError(501, "unsupported_encoding", "the only Transfer-Encoding here is chunked");
    if (request.is_multipart_form_data())
      return HttpError(415, "unsupported_type", "the body is JSON: application/json, not a form");
    if (request.has_header("Content-Encoding"))
      return HttpError(415, "unsupported_encoding", "send the body without a Content-Encoding");
    if (request.method == "POST" && !has_body(request))
      return HttpError(411, "length_required", "a POST needs a Content-Length");
    if (length.find_first_not_of("0123456789") != length.npos)
      return HttpError(400, "bad_request", "the Content-Length is not a number");
    if (length.size() > 18 || (!length.empty() && std::stoull(length) > max_body_))
      return too_large();
    return {};
  }
  // Answers what needs no body. The connection ends if there is one: it is not read.
  bool before_body(const httplib::Request& request, httplib::Response& response) {
    const HttpRequest plain = plain_request(request);
    const bool refused = service_.refusal(plain).has_value();
    const auto wrong = wrong_body(request);
    if (request.method == "POST" && !refused && !wrong) return false;
    if (has_body(request)) current_connection->set_closing();
    if (wrong && !refused)
      send_reply(error_reply(*wrong), response);
    else
      send_reply(service_.handle(plain, client_has_left()), response);
    return true;
  }
  HttpError too_large() const {
    return {413, "body_too_large",
            "the body has more than the " + std::to_string(max_body_) +
                " bytes of this server (--max-body)"};
  }

  void with_body(const httplib::Request& request, httplib::Response& response,
                 const httplib::ContentReader& reader) {
    HttpRequest plain = plain_request(request);
    bool fits = true;
    const bool complete = reader([&](const char* data, size_t size) {
      fits = plain.body.size() + size <= max_body_;
      if (fits) plain.body.append(data, size);
      return fits;
    });
    if (complete) return send_reply(service_.handle(plain, client_has_left()), response);
    current_connection->set_closing();
    send_reply(error_reply(!fits ? too_large()
                           : current_connection->timed_out()
                               ? HttpError(408, "timeout", "the body did not arrive in time")
                               : HttpError(400, "bad_request", "the body is incomplete")),
               response);
  }

  HttpHandler& service_;
  std::size_t max_body_;
  std::atomic<std::int64_t> busy_ = 0;
};

}  // namespace

bool http_server_is_built() { return true; }

struct HttpServer::State {
  State(HttpHandler& given, const HttpServerOptions& given_options)
      : service(given),
        options(given_options),
        listener(given_options.host, given_options.port),
        protocol(given, listener.socket(), given_options.connection.max_body) {}

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
        ::send(socket, kBusyReply, std::char_traits<char>::length(kBusyReply),
               MSG_DONTWAIT | MSG_NOSIGNAL);
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
