'use strict';

// What is shown, kept in the address after '#', so that a view can be shared.
const ViewState = (() => {
  const kAxes = ['step', 'tokens', 'hours'];
  const kMostRuns = 10;
  const initial = () =>
      ({runs: [], axis: 'step', smoothing: 0, logX: false, log: ['grad_norm'], zoom: null});

  function parse(hash) {
    const state = initial();
    const pairs = new URLSearchParams(hash.replace(/^#/, ''));
    state.runs = [...pairs.getAll('run'), ...listed(pairs.get('runs') || '')].filter(Boolean).slice(
        0, kMostRuns);
    if (kAxes.includes(pairs.get('axis'))) state.axis = pairs.get('axis');
    const smoothing = Number(pairs.get('smooth'));
    if (smoothing >= 0 && smoothing < 1) state.smoothing = smoothing;
    state.logX = pairs.get('logx') === '1';
    if (pairs.has('log')) state.log = pairs.get('log').split(',').filter(Boolean);
    const zoom = (pairs.get('zoom') || '').split('~').map(Number);
    if (zoom.length === 2 && zoom.every(Number.isFinite) && zoom[0] < zoom[1]) state.zoom = zoom;
    return state;
  }
  // A list of ids in one value, as older links have it. Commas inside an id are escaped once more
  // than those between ids.
  const listed = (text) => text.split(',').map(decode);
  function decode(text) {
    try {
      return decodeURIComponent(text);
    } catch {
      return '';
    }
  }

  function serialize(state) {
    const pairs = new URLSearchParams();
    const plain = initial();
    for (const id of state.runs) pairs.append('run', id);
    if (state.axis !== plain.axis) pairs.set('axis', state.axis);
    if (state.smoothing) pairs.set('smooth', String(state.smoothing));
    if (state.logX) pairs.set('logx', '1');
    if (state.log.join() !== plain.log.join()) pairs.set('log', state.log.join(','));
    if (state.zoom) pairs.set('zoom', state.zoom.join('~'));
    return '#' + pairs;
  }
  return {kMostRuns, parse, serialize};
})();
