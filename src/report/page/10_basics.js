'use strict';

// Numbers, durations and sizes as text. Unknown values (null, undefined, NaN) become a dash.
const Format = (() => {
  const kUnknown = '–';
  const known = (value) => typeof value === 'number' && Number.isFinite(value);

  // Four significant digits; powers of ten only where plain digits would be long.
  function number(value, digits = 4) {
    if (!known(value)) return kUnknown;
    if (value === 0) return '0';
    const size = Math.abs(value);
    if (size >= 1e7 || size < 1e-4)
      return Number(value.toExponential(Math.max(0, digits - 2)))
          .toExponential()
          .replace('e+', 'e');
    if (size >= 1000) return count(value);
    return String(Number(value.toPrecision(digits)));
  }
  function count(value) {
    if (!known(value)) return kUnknown;
    return Math.round(value).toString().replace(/\B(?=(\d{3})+(?!\d))/g, ',');
  }
  // 1.23 M, 45.6 k.
  function si(value, unit = '', digits = 3) {
    if (!known(value)) return kUnknown;
    if (Math.abs(value) >= 1e21) return withUnit(number(value, digits), unit);
    const names = ['', 'k', 'M', 'G', 'T', 'P', 'E'];
    let scaled = value, at = 0;
    while (Math.abs(scaled) >= 999.5 && at + 1 < names.length) {
      scaled /= 1000;
      ++at;
    }
    if (at === 0 && Math.abs(scaled) < 1 && scaled !== 0)
      return withUnit(number(scaled, digits), unit);
    return withUnit(String(Number(scaled.toPrecision(digits))), names[at] + unit);
  }
  // Billions, as the field says it.
  const tokens = (value, digits = 3) => si(value, '', digits).replace(' G', ' B');
  const withUnit = (text, unit) => (unit ? text + ' ' + unit : text);
  function bytes(value, digits = 3) {
    if (!known(value)) return kUnknown;
    const names = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
    let scaled = value, at = 0;
    while (Math.abs(scaled) >= 1023.5 && at + 1 < names.length) {
      scaled /= 1024;
      ++at;
    }
    const least = Math.abs(scaled) >= 999.5 ? 4 : 3;
    return Number(scaled.toPrecision(Math.max(least, digits))) + ' ' + names[at];
  }
  function seconds(value, digits = 3) {
    if (!known(value)) return kUnknown;
    if (value < 0) return '-' + seconds(-value, digits);
    if (value === 0) return '0 s';
    if (value < 1e-3) return Number((value * 1e6).toPrecision(digits)) + ' µs';
    if (value < 1) return Number((value * 1e3).toPrecision(digits)) + ' ms';
    if (value < 60) return Number(value.toPrecision(digits)) + ' s';
    const whole = Math.round(value);
    if (whole < 3600) return pair(whole, 60, 'min', 1, 's');
    if (whole < 172800) return pair(whole, 3600, 'h', 60, 'min');
    return pair(whole, 86400, 'd', 3600, 'h');
  }
  function pair(whole, large, largeName, small, smallName) {
    const first = Math.floor(whole / large), second = Math.floor((whole % large) / small);
    return first + ' ' + largeName + (second ? ' ' + second + ' ' + smallName : '');
  }
  function percent(value, digits = 3) {
    if (!known(value)) return kUnknown;
    return Number(
               Math.abs(value) < 1e-2 ? (100 * value).toFixed(Math.max(2, digits - 2)) :
                                        (100 * value).toPrecision(digits)) +
        ' %';
  }
  function joules(value) {
    if (!known(value)) return kUnknown;
    return value >= 3.6e5 ? si(value / 3600, 'Wh') : si(value, 'J');
  }
  // Local time, in the form that log files have.
  function time(seconds_since_1970) {
    if (!known(seconds_since_1970)) return kUnknown;
    const date = new Date(seconds_since_1970 * 1000);
    const two = (part) => String(part).padStart(2, '0');
    return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ` +
        `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  }
  function ago(seconds_since_1970, now = Date.now() / 1000) {
    if (!known(seconds_since_1970)) return kUnknown;
    const passed = seconds(Math.max(1, Math.round(now - seconds_since_1970)));
    return passed.split(' ').slice(0, 2).join(' ') + ' ago';
  }
  return {ago, bytes, count, joules, known, kUnknown, number, percent, seconds, si, time, tokens};
})();

// Building of elements. Text is always set as text: nothing here parses HTML.
const Elements = (() => {
  const kSvg = 'http://www.w3.org/2000/svg';

  function fill(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) {
      if (value === null || value === undefined || value === false) continue;
      if (name === 'text')
        element.textContent = value;
      else if (name.startsWith('on'))
        element.addEventListener(name.slice(2), value);
      else
        element.setAttribute(name, value === true ? '' : value);
    }
    element.append(...children.filter((child) => child !== null && child !== undefined));
    return element;
  }
  function make(tag, attributes = {}, ...children) {
    return fill(document.createElement(tag), attributes, children);
  }
  function svg(tag, attributes = {}, ...children) {
    return fill(document.createElementNS(kSvg, tag), attributes, children);
  }
  function byId(id) {
    return document.getElementById(id);
  }

  // Columns of a table; cell(row) -> text or element. Numbers are aligned to the right.
  const column = (title, cell, className) => ({title, cell, class: className});
  const numbers = (title, cell) => ({title, cell, class: 'number', head: 'number'});
  function table(columns, rows) {
    const head =
        columns.map((each) => make('th', {scope: 'col', text: each.title, class: each.head}));
    const body = rows.map((row) => make('tr', {}, ...columns.map((each) => {
                            const content = each.cell(row);
                            const cell = make('td', {class: each.class});
                            cell.append(content instanceof Node ? content : String(content ?? ''));
                            return cell;
                          })));
    return make(
        'table', {}, make('thead', {}, make('tr', {}, ...head)), make('tbody', {}, ...body));
  }
  function named(colour, text) {
    const swatch = make('span', {class: 'swatch'});
    swatch.style.background = colour;
    return make('span', {}, swatch, text);
  }
  function card(title, ...children) {
    return make('div', {class: 'card'}, title ? make('h3', {text: title}) : null, ...children);
  }
  function wideCard(title, ...children) {
    const made = card(title, ...children);
    made.classList.add('wide');
    return made;
  }
  // A drawing that fills the width: draw(width) -> its parts, again whenever the width changes.
  function drawing(attributes, height, draw) {
    const made = svg('svg', {height, role: 'img', ...attributes});
    let drawnWidth = 0;
    new ResizeObserver(() => {
      const width = Math.round(made.clientWidth || made.parentNode.clientWidth);
      if (!width || width === drawnWidth) return;
      drawnWidth = width;
      made.setAttribute('viewBox', `0 0 ${width} ${height}`);
      made.replaceChildren(...draw(width));
    }).observe(made);
    return made;
  }
  return {byId, card, column, drawing, make, named, numbers, svg, table, wideCard};
})();

// One box beside the pointer for all panels.
const Tooltip = (() => {
  let box = null;
  function show(x, y, content) {
    box = box || Elements.byId('tooltip');
    if (typeof content === 'string')
      box.textContent = content;
    else
      box.replaceChildren(content);
    box.hidden = false;
    const width = box.offsetWidth, height = box.offsetHeight;
    box.style.left = Math.max(4, x + 14 + width > innerWidth ? x - width - 14 : x + 14) + 'px';
    box.style.top = Math.max(4, Math.min(y + 14, innerHeight - height - 4)) + 'px';
  }
  function hide() {
    if (box) box.hidden = true;
  }
  // The tooltip of an element: the text is computed when the pointer arrives.
  function attach(element, text) {
    element.addEventListener('pointermove', (event) => show(event.clientX, event.clientY, text()));
    element.addEventListener('pointerleave', hide);
  }
  return {attach, hide, show};
})();

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
