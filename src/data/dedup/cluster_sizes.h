#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

namespace kintsugi {

// How many clusters there are of each size: in classes from 2 on, 4 on, 8 on and so on.
class ClusterSizes {
 public:
  static constexpr std::size_t kClasses = 48;

  void add(std::uint64_t size, std::uint64_t clusters = 1) {
    Class& to = classes_[static_cast<std::size_t>(std::bit_width(size)) - 2];
    to.clusters += clusters;
    to.members += size * clusters;
  }
  void add(const ClusterSizes& other) {
    for (std::size_t i = 0; i < kClasses; ++i) {
      classes_[i].clusters += other.classes_[i].clusters;
      classes_[i].members += other.classes_[i].members;
    }
  }

  // A list of the classes that have clusters: {"from": 2, "clusters": 5, "members": 13}.
  nlohmann::ordered_json json() const {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (std::size_t i = 0; i < kClasses; ++i)
      if (const Class& one = classes_[i]; one.clusters > 0)
        list.push_back({{"from", std::uint64_t{2} << i},
                        {"clusters", one.clusters},
                        {"members", one.members}});
    return list;
  }
  // Nothing if it is no such list.
  static std::optional<ClusterSizes> of(const nlohmann::ordered_json& json) {
    const auto count = [](const nlohmann::ordered_json& one, const char* key) {
      return one.is_object() && one.contains(key) && one[key].is_number_unsigned()
                 ? one[key].get<std::uint64_t>()
                 : 0;
    };
    if (!json.is_array()) return std::nullopt;
    ClusterSizes sizes;
    for (const auto& one : json) {
      const auto from = count(one, "from");
      const auto place = static_cast<std::size_t>(std::bit_width(from)) - 2;
      if (!std::has_single_bit(from) || place >= kClasses) return std::nullopt;
      sizes.classes_[place] = {count(one, "clusters"), count(one, "members")};
    }
    return sizes;
  }

 private:
  struct Class {
    std::uint64_t clusters = 0, members = 0;
  };
  std::array<Class, kClasses> classes_;
};

}  // namespace kintsugi
