'use strict';

// Where the page's data comes from: a server, or the JSON inside the page (report.html). Both
// answer the same questions; see docs/dashboard.md for the replies.
const Source = (() => {
  class ServerSource extends Server.Connection {
    constructor() {
      super();
      this.live = true;
    }
    runs() {
      return this.ask('runs', []);
    }
    run(id) {
      return this.ask('run', [['id', id]]);
    }
    series(id, request, signal) {
      const pairs = [
        ['id', id], ['keys', request.keys.join(',')], ['axis', request.axis],
        ['points', request.points]
      ];
      if (request.from !== undefined) pairs.push(['from', request.from], ['to', request.to]);
      return this.ask('series', pairs, signal);
    }
    compare(ids) {
      return this.ask('compare', ids.map((id) => ['id', id]));
    }
    profile(id, name) {
      return this.ask('profile', [['id', id], ['name', name]]);
    }

    // Calls receive(kind, data) until close() of the returned object; it connects again by itself.
    listen(ids, receive, connected) {
      const pairs = ids.map((id) => ['id', id]);
      if (this.token) pairs.push(['token', this.token]);  // an EventSource cannot send headers
      const stream = new EventSource('api/events?' + new URLSearchParams(pairs));
      let retry = 0;
      stream.onopen = () => connected(true);
      stream.onerror = () => {
        connected(false);
        // A refused stream stays closed: ask again later.
        if (stream.readyState === EventSource.CLOSED && !retry)
          retry = setTimeout(() => receive('closed', {}), 3000);
      };
      for (const kind of ['runs', 'points', 'log', 'reload'])
        stream.addEventListener(kind, (event) => receive(kind, JSON.parse(event.data)));
      return {
        close: () => {
          clearTimeout(retry);
          stream.close();
        }
      };
    }
  }

  class EmbeddedSource {
    constructor(data) {
      this.live = false;
      this.data = data;
      this.bytesReceived = 0;
      this.requests = 0;
    }
    async runs() {
      return this.data.runs;
    }
    async run(id) {
      return this.member('run', id);
    }
    async series(id, request) {
      return (this.member('series', id) || {})[request.axis] || {keys: {}};
    }
    async compare(ids) {
      return ids.length > 1 ? this.data.compare || null : null;
    }
    async profile(id, name) {
      const profile = ((this.data.profile || {})[id] || {})[name];
      if (profile === undefined) throw new Server.Refused('this report does not contain it', 404);
      return profile;
    }
    listen() {
      return {close() {}};
    }
    member(kind, id) {
      const found = (this.data[kind] || {})[id];
      if (found === undefined)
        throw new Server.Refused(
            'this report does not contain the ' + kind + ' of ' + (id || 'its run'), 404);
      return found;
    }
  }

  function open() {
    const data = Server.embedded();
    return data ? new EmbeddedSource(data) : new ServerSource();
  }
  return {open};
})();

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
