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
