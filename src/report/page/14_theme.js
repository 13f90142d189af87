'use strict';

// The colours of the style sheet, for canvases; read again when the scheme changes or a print
// begins.
const Theme = (() => {
  const kSeries = 10;
  let values = new Map();
  function colour(name) {
    if (!values.has(name))
      values.set(
          name, getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim());
    return values.get(name);
  }
  function forget() {
    values = new Map();
  }
  const series = (index) => colour('series-' + (index % kSeries));

  // What the time went into, in the order of the program's tables.
  const kGoodput = {
    productive: 'series-2',
    recomputed: 'series-1',
    checkpoint: 'series-0',
    validation: 'series-3',
    startup: 'series-6',
    waiting: 'series-7',
    down: 'bad',
    other: 'cell',
  };
  const kProfile = {
    'Kernel': 'series-2',
    'Memcpy': 'series-0',
    'Memset': 'series-5',
    'Communication': 'series-1',
    'Runtime': 'series-3',
    'DataLoader': 'series-8',
    'CPU Exec': 'series-6',
    'Other': 'series-7',
  };
  const kActions = {
    forward: 'series-0',
    backward: 'series-2',
    backward_input: 'series-5',
    backward_weight: 'series-9',
  };
  const goodput = (kind) => colour(kGoodput[kind] || 'cell');
  const profile = (category) => colour(kProfile[category] || 'cell');
  const action = (kind) => colour(kActions[kind] || 'cell');

  // A mix of two colours '#rrggbb'.
  function mix(from, to, share) {
    const part = (text, at) => parseInt(text.slice(at, at + 2), 16);
    const channel = (at) => Math.round(part(from, at) + (part(to, at) - part(from, at)) * share);
    return `rgb(${channel(1)} ${channel(3)} ${channel(5)})`;
  }
  return {action, colour, forget, goodput, mix, profile, series};
})();
