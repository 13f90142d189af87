#pragma once

#include <string>
#include <vector>

namespace kintsugi {

// The terminal's second screen, for a live view. The destructor restores the terminal; so do
// handlers of the signals that end the process by an error. Ctrl-Z restores it until the process
// continues. One object at a time.
class TerminalScreen {
 public:
  // Returns whether standard output is a terminal that can show a live view.
  static bool is_available();

  TerminalScreen();
  ~TerminalScreen();
  TerminalScreen(const TerminalScreen&) = delete;
  TerminalScreen& operator=(const TerminalScreen&) = delete;

  // Replaces what is shown. Lines may contain escape sequences for colours.
  void show(const std::vector<std::string>& lines);

  enum class Event {
    Timeout,
    Resized,  // or continued after Ctrl-Z: draw again
    Ended,    // SIGINT, SIGTERM, SIGHUP or SIGQUIT, or the terminal is gone
    Quit,     // the key q
    Next,     // tab, down or right
    Previous,
    Logarithmic,  // the key l
  };
  // Waits for a key or a signal, `seconds` at most. Signals arrive only while it waits.
  Event wait(double seconds);

 private:
  Event event_of_signals();
  Event event_of_key();

  std::string keys_;  // typed, not yet used
  bool reads_keys_ = false;
};

// The size of the terminal; without one that of the environment (COLUMNS, LINES), or 80 x 24.
struct TerminalSize {
  int columns = 80, rows = 24;
};
TerminalSize terminal_size();

}  // namespace kintsugi
