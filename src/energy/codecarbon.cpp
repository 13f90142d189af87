#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <map>
#include <sstream>

#include "core/error.h"
#include "core/file.h"
#include "energy/carbon.h"
#include "energy/energy_report.h"

namespace kintsugi {
namespace {

// A cell after RFC 4180; control characters would break readers of lines.
std::string csv_cell(std::string text) {
  for (char& c : text)
    if (std::iscntrl(static_cast<unsigned char>(c)) != 0) c = ' ';
  if (text.find_first_of(",\"") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

std::string number_cell(const std::optional<double>& value) {
  return value ? fmt::format("{:.10g}", *value) : "";
}

// Column names and values of one run; other columns are unknown.
std::map<std::string, std::string> codecarbon_cells(const EnergyReport& report) {
  const MeasuredEnergy measured = measured_energy(report);
  const bool any = !measured.levels.empty();
  const double pue = report.facility.pue >= 0 ? report.facility.pue : 1;
  const CarbonFootprint footprint = carbon_of(measured.all(), report.facility);
  const auto kwh = [&](EnergyLevel level) {
    const std::optional<double>& joules = measured.joules[level];
    return number_cell(joules ? std::optional(to_kwh(*joules * pue)) : std::nullopt);
  };
  const auto watts = [&](EnergyLevel level) {
    const std::optional<double> one = report.node_watts(level);
    const auto nodes = static_cast<double>(report.source(level).nodes);
    return number_cell(one ? std::optional(*one * nodes) : std::nullopt);
  };
  const std::optional<double> kg = any ? footprint.kg_co2 : std::nullopt;
  const bool rate = kg && report.seconds > 0;
  const std::string gpus = report.gpus > 0 ? std::to_string(report.gpus) : "";
  return {
      {"timestamp", report.timestamp},
      {"project_name", report.run},
      {"run_id", report.run_id},
      {"duration", number_cell(report.seconds)},
      {"emissions", number_cell(kg)},
      {"emissions_rate", number_cell(rate ? std::optional(*kg / report.seconds) : std::nullopt)},
      {"cpu_power", watts(EnergyLevel::Cpu)},
      {"gpu_power", watts(EnergyLevel::Gpu)},
      {"ram_power", watts(EnergyLevel::Memory)},
      {"cpu_energy", kwh(EnergyLevel::Cpu)},
      {"gpu_energy", kwh(EnergyLevel::Gpu)},
      {"ram_energy", kwh(EnergyLevel::Memory)},
      {"energy_consumed",
       number_cell(any ? std::optional(to_kwh(measured.total() * pue)) : std::nullopt)},
      {"gpu_count", gpus},
      {"gpu_model", gpus.empty() || report.gpu_model.empty()
                        ? report.gpu_model
                        : fmt::format("{} x {}", gpus, report.gpu_model)},
      {"tracking_mode", "machine"},
      {"pue", report.facility.pue >= 0 ? number_cell(report.facility.pue) : ""}};
}

constexpr std::streamsize kLongestHeader = 1 << 16;

// The first line of a file and whether its last line is complete.
struct CsvShape {
  std::string header = {};
  bool complete = true;
};
CsvShape shape_of(const std::filesystem::path& file) {
  CsvShape shape;
  std::ifstream stream(file, std::ios::binary);
  shape.header.resize(kLongestHeader);
  stream.read(shape.header.data(), kLongestHeader);
  shape.header.resize(static_cast<std::size_t>(stream.gcount()));
  shape.header.resize(std::min(shape.header.find('\n'), shape.header.size()));
  if (!shape.header.empty() && shape.header.back() == '\r') shape.header.pop_back();
  stream.clear();
  stream.seekg(0, std::ios::end);
  if (stream.tellg() <= 0) return shape;
  stream.seekg(-1, std::ios::end);
  shape.complete = stream.get() == '\n';
  return shape;
}

}  // namespace

std::string codecarbon_header() {
  return "timestamp,project_name,run_id,experiment_id,duration,emissions,emissions_rate,cpu_power,"
         "gpu_power,ram_power,cpu_energy,gpu_energy,ram_energy,energy_consumed,water_consumed,"
         "country_name,country_iso_code,region,cloud_provider,cloud_region,os,python_version,"
         "codecarbon_version,cpu_count,cpu_model,gpu_count,gpu_model,longitude,latitude,"
         "ram_total_size,tracking_mode,cpu_utilization_percent,gpu_utilization_percent,"
         "ram_utilization_percent,ram_used_gb,on_cloud,pue,wue";
}

std::string to_codecarbon_csv(const EnergyReport& report, const std::string& header) {
  const std::map<std::string, std::string> cells = codecarbon_cells(report);
  std::string line;
  std::istringstream columns(header);
  for (std::string column; std::getline(columns, column, ',');) {
    const auto found = cells.find(column);
    line += (found == cells.end() ? "" : csv_cell(found->second)) + ",";
  }
  if (!line.empty()) line.pop_back();
  return line;
}

void append_codecarbon(const std::filesystem::path& file, const EnergyReport& report) {
  const CsvShape shape = shape_of(file);
  if (shape.header.empty())
    return append_to_file(file, codecarbon_header() + "\n" + to_codecarbon_csv(report) + "\n");
  if (shape.header.find("energy_consumed") == std::string::npos)
    user_error("{} is not an emissions.csv of CodeCarbon: its first line has no energy_consumed",
               file.string());
  append_to_file(file,
                 (shape.complete ? "" : "\n") + to_codecarbon_csv(report, shape.header) + "\n");
}

}  // namespace kintsugi
