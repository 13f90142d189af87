#pragma once

#include <cctype>
#include <cstdlib>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>

namespace kintsugi {

// A strict parser of Prometheus' text format, as the textfile collector of node_exporter demands
// it. Throws std::runtime_error with the line.

struct PrometheusRead {
  std::map<std::string, std::string> types, help;             // by metric
  std::map<std::string, std::map<std::string, double>> data;  // [metric][labels, "a=x,b=y"]

  double at(const std::string& metric, const std::string& labels) const {
    return data.at(metric).at(labels);
  }
  bool has(const std::string& metric) const { return data.contains(metric); }
};

class PrometheusParser {
 public:
  static PrometheusRead parse(const std::string& text) {
    PrometheusParser parser;
    if (text.empty() || text.back() != '\n') throw std::runtime_error("no final line end");
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = text.find('\n', at);
      parser.line_ = text.substr(at, end - at);
      parser.line();
      at = end + 1;
    }
    return parser.read_;
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw std::runtime_error(why + " in: " + line_);
  }
  void require(bool condition, const std::string& why) const {
    if (!condition) refuse(why);
  }
  static bool is_name(std::string_view text) {
    if (text.empty() || std::isdigit(static_cast<unsigned char>(text[0]))) return false;
    for (const char c : text)
      if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_') return false;
    return true;
  }

  void line() {
    if (line_.starts_with("# HELP ")) {
      metric_ = line_.substr(7, line_.find(' ', 7) - 7);
      require(is_name(metric_), "bad name");
      require(line_.size() > 8 + metric_.size(), "empty help");
      require(read_.help.emplace(metric_, line_.substr(8 + metric_.size())).second, "second HELP");
    } else if (line_.starts_with("# TYPE ")) {
      const std::string type = line_.substr(8 + metric_.size());
      require(line_ == "# TYPE " + metric_ + " " + type, "TYPE of another metric");
      require(type == "gauge" || type == "counter" || type == "histogram", "bad type");
      require((type == "counter") == metric_.ends_with("_total"), "counters end in _total");
      require(read_.types.emplace(metric_, type).second, "second TYPE");
    } else {
      sample();
    }
  }

  void sample() {
    const std::size_t name_end = line_.find_first_of("{ ");
    const std::string name = line_.substr(0, name_end);
    const bool of_histogram =
        read_.types[metric_] == "histogram" &&
        (name == metric_ + "_bucket" || name == metric_ + "_sum" || name == metric_ + "_count");
    require(name_end != std::string::npos && (name == metric_ || of_histogram) &&
                !read_.types[metric_].empty(),
            "sample without its own HELP and TYPE before it");
    std::size_t at = name_end;
    const std::string labels = line_[at] == '{' ? this->labels(at) : "";
    require(at < line_.size() && line_[at] == ' ', "no space before the value");
    const std::string number = line_.substr(at + 1);
    require(number.find_first_of(" \t") == std::string::npos, "a time stamp");
    char* end = nullptr;
    const double value = std::strtod(number.c_str(), &end);
    require(!number.empty() && *end == '\0', "bad number");
    const bool word = std::isalpha(static_cast<unsigned char>(number.back())) != 0;
    require(!word || number == "NaN" || number == "+Inf" || number == "-Inf", "bad spelling");
    require(read_.data[name].emplace(labels, value).second, "the same sample twice");
  }

  // From '{' at `at` to the character after '}'.
  std::string labels(std::size_t& at) {
    std::string all, last;
    do {
      const std::size_t equals = line_.find("=\"", ++at);
      require(equals != std::string::npos, "bad label");
      const std::string name = line_.substr(at, equals - at);
      require(is_name(name) && name > last, "labels are not sorted");
      last = name;
      all += (all.empty() ? "" : ",") + name + "=";
      for (at = equals + 2; at < line_.size() && line_[at] != '"'; ++at) {
        if (line_[at] != '\\') {
          all += line_[at];
          continue;
        }
        require(++at < line_.size() &&
                    std::string_view("\\\"n").find(line_[at]) != std::string_view::npos,
                "bad escape");
        all += line_[at] == 'n' ? '\n' : line_[at];
      }
      require(++at < line_.size(), "the label does not end");
    } while (line_[at] == ',');
    require(line_[at] == '}', "the labels do not end");
    ++at;
    return all;
  }

  std::string line_, metric_;
  PrometheusRead read_;
};

}  // namespace kintsugi
