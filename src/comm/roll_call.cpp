#include "comm/roll_call.h"

#include <poll.h>

#include <random>
#include <sstream>

#include "comm/exchange.h"
#include "core/error.h"

namespace kintsugi {
namespace {

constexpr char kAsk = 'A';
constexpr int kPatienceMs = 1000;  // with a guest that says nothing

// Strangers may knock at an open port; only ranks of this job know the word.
std::string make_password() {
  std::random_device random;
  std::string word;
  for (int i = 0; i < 4; ++i) word += fmt::format("{:08x}", random());
  return word;
}

}  // namespace

RollCall::RollCall(World& world, std::function<std::string()> answer)
    : answer_(std::move(answer)),
      listener_(world.local_size() == world.size()),
      password_(make_password()) {
  std::string place = fmt::format("{} {} {}", password_, host_name(), listener_.port());
  for (const std::string& address : host_addresses()) place += " " + address;
  const auto group = world.split("roll call", 0, world.rank());
  places_ = gather_texts(*group, place);
  thread_ = std::thread([this] { serve(); });
}

RollCall::~RollCall() {
  stop_ = true;
  thread_.join();
}

void RollCall::serve() {
  while (!stop_) {
    pollfd entry{listener_.descriptor(), POLLIN, 0};
    if (poll(&entry, 1, 100) <= 0) continue;
    Socket guest = listener_.accept();
    if (!guest) continue;
    const auto question = guest.receive(kPatienceMs);
    if (question && question->type == kAsk && question->text == password_)
      guest.send(kAsk, answer_());
  }
}

std::optional<std::string> RollCall::ask(int rank, int timeout_ms) const {
  std::istringstream stream(places_.at(static_cast<std::size_t>(rank)));
  std::string password, host;
  int port = 0;
  stream >> password >> host >> port;
  std::vector<std::string> addresses;
  if (host == host_name()) addresses.emplace_back("127.0.0.1");
  for (std::string address; stream >> address;) addresses.push_back(address);
  for (const std::string& address : addresses) {
    Socket socket = connect_to(address, port, timeout_ms);
    if (!socket || !socket.send(kAsk, password)) continue;
    if (const auto frame = socket.receive(timeout_ms); frame && frame->type == kAsk)
      return frame->text;
  }
  return {};
}

}  // namespace kintsugi
