#include "http/http_server.h"

#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>

#include "core/log.h"
#include "http/http_reader.h"
#include "http/http_writer.h"
#include "http/listener.h"

namespace kintsugi {
namespace {

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
