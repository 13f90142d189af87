#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace kintsugi::nccl {

// Sets what this world relies on where the user has not: before NCCL is first used.
void set_defaults();

// "NCCL_SOCKET_IFNAME=ib0 NCCL_NET_PLUGIN=…": what the environment tells NCCL, empty if nothing.
std::string variables();

// "IB" of a log of NCCL's that says "… Using network IB".
std::optional<std::string> network_of(const std::string& log);

// Lets NCCL write a log, which is the only place where it says which network it takes. Before NCCL
// is first used.
class NetworkLog {
 public:
  explicit NetworkLog(bool wanted);
  ~NetworkLog();
  NetworkLog(const NetworkLog&) = delete;
  NetworkLog& operator=(const NetworkLog&) = delete;
  // Nothing where it was not wanted, or where the user's own settings send the log elsewhere.
  std::optional<std::string> network() const;

 private:
  std::filesystem::path path_;
};

}  // namespace kintsugi::nccl
