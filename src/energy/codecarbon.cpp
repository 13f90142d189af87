#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <map>
#include <sstream>
#include <vector>

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

// The cells of a line, without quotes.
std::vector<std::string> csv_cells(const std::string& line) {
  std::vector<std::string> cells(1);
  bool quoted = false;
  for (const char c : line)
    if (c == '"')
      quoted = !quoted;
    else if (c == ',' && !quoted)
      cells.emplace_back();
    else
      cells.back() += c;
  return cells;
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

void write_codecarbon(const std::filesystem::path& file, const EnergyReport& report) {
  std::istringstream lines(std::filesystem::exists(file) ? read_text_file(file) : "");
  std::string header, text;
  std::getline(lines, header);
  while (header.ends_with('\r')) header.pop_back();
  if (header.empty()) header = codecarbon_header();
  if (header.find("energy_consumed") == std::string::npos)
    user_error("{} is not an emissions.csv of CodeCarbon: its first line has no energy_consumed",
               file.string());
  const std::vector<std::string> columns = csv_cells(header);
  const auto id = static_cast<std::size_t>(std::find(columns.begin(), columns.end(), "run_id") -
                                           columns.begin());
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string> cells = csv_cells(line);
    if (!line.empty() && (id >= cells.size() || cells[id] != report.run_id)) text += line + "\n";
  }
  write_file_atomically(file, header + "\n" + text + to_codecarbon_csv(report, header) + "\n");
}

}  // namespace kintsugi
