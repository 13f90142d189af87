'use strict';

// Puts the page together: which runs are shown, what is asked from the source, and when it is
// drawn.
(() => {
  const {byId, make} = Elements;
  const source = Source.open();
  const view = ViewState.parse(location.hash);
  const details = new Map();   // id -> reply of /api/run
  let skipped = [];            // of the folders: {path, why}
  const profiles = new Map();  // id -> {name, data, problem}
  let comparison = null;
  let stream = null;
  let closed = true;  // the stream to the server is not open
  let refreshAt = 0;

  const kSections = [
    {id: 'curves', title: 'Curves'},
    {id: 'compare', title: 'What differs', cards: ComparePanel.cards},
    {id: 'goodput', title: 'Time', cards: GoodputPanel.cards},
    {id: 'memory', title: 'Memory', cards: MemoryPanel.cards},
    {id: 'ranks', title: 'Ranks', cards: RanksPanel.cards},
    {id: 'experts', title: 'Experts', cards: ExpertsPanel.cards},
    {id: 'pipeline', title: 'Pipeline', cards: PipelinePanel.cards},
    {id: 'profile', title: 'Profile', cards: ProfilePanel.cards},
    {id: 'samples', title: 'Samples', cards: SamplesPanel.cards},
    {id: 'events', title: 'Events', cards: EventsPanel.cards},
    {id: 'log', title: 'Log', cards: LogPanel.cards},
    {id: 'configuration', title: 'Configuration', cards: ConfigurationPanel.cards},
  ];
  const list = new RunsList((ids) => select(ids));
  let curves = null;

  // ---- sections

  function buildSections() {
    for (const section of kSections) {
      section.host = make('div', {class: 'cards'});
      section.element = make(
          'section', {class: 'section', id: 'section-' + section.id, hidden: true},
          make('h2', {text: section.title}), section.host);
      section.button = make('button', {
        type: 'button',
        text: section.title,
        hidden: true,
        'data-section': section.id,
        onclick: () => section.element.scrollIntoView({block: 'start'}),
      });
      byId('panels').append(section.element);
      byId('sections').append(section.button);
    }
  }
  function showSection(section, shown) {
    section.element.hidden = !shown;
    section.button.hidden = !shown;
  }
  function context() {
    const shown = view.runs.filter((id) => list.runs.has(id));
    const runs = shown.map((id) => {
      const summary = list.runs.get(id), {name} = summary;
      const of = shown.length > 1 ? ' of ' + name : '';
      return {id, name, of, summary, detail: details.get(id) || {}, profile: profiles.get(id)};
    });
    return {runs, compare: comparison, live: source.live, chooseProfile};
  }
  function drawSections(only) {
    const now = context();
    for (const section of kSections) {
      if (!section.cards || (only && !only.includes(section.id))) continue;
      const cards = cardsOf(section, now);
      section.host.replaceChildren(...cards);
      showSection(section, cards.length > 0);
    }
  }
  // A damaged file of a run must not take the other sections along.
  function cardsOf(section, now) {
    try {
      return section.cards(now);
    } catch (error) {
      console.error(error);
      return [Elements.wideCard(
          null, make('p', {
            text: 'This section cannot be drawn: a file of the run is damaged (' + error.message +
                ').'
          }))];
    }
  }
  function drawSummary() {
    const [main] = context().runs;
    Summary.draw(byId('section-summary'), main && main.summary, view.runs.length - 1);
    document.title = main ? main.name + ' – Kintsugi' : 'Kintsugi runs';
  }
  function drawCurves() {
    const known = context().runs.filter((run) => details.has(run.id));
    const runs = known.map(
        ({id, name, detail}) =>
            ({id, name, keys: [...(detail.keys || [])], events: detail.events || []}));
    // First, because panels ask for as many points as they have pixels.
    showSection(
        kSections.find((section) => section.id === 'curves'),
        runs.some((run) => run.keys.length > 0));
    byId('controls').hidden = !runs.length;
    curves.show(runs);
  }

  // ---- loading

  function fail(error) {
    if (error.name === 'AbortError') return;
    const lost = source.live && !(error.status > 0);
    if (lost) {
      connection('lost', 'no connection to the server, trying again');
      return;
    }
    notice(Server.describe(error, 'kintsugi dashboard'));
  }
  function notice(text) {
    byId('notice').textContent = text;
    byId('notice').hidden = !text;
  }
  function connection(state, text) {
    const element = byId('connection');
    element.dataset.state = state;
    element.textContent = text;
  }

  async function loadRuns() {
    const reply = await source.runs();
    const ids = new Set(reply.runs.map((run) => run.id));
    list.update(reply.runs, [...list.runs.keys()].filter((id) => !ids.has(id)));
    skipped = reply.skipped || [];
    showSkipped();
    if (!reply.runs.length)
      notice('There are no runs below ' + (reply.folders || []).join(', ') + ' yet.');
    else
      notice('');
  }
  // Those of the folders, and what was found damaged in the runs that were read.
  function showSkipped() {
    const all = [...skipped];
    for (const [id, detail] of details)
      for (const {path, why} of detail.skipped || [])
        if (list.runs.has(id)) all.push({path: list.runs.get(id).name + '/' + path, why});
    const element = byId('skipped');
    element.hidden = !all.length;
    element.querySelector('summary').textContent =
        all.length + (all.length === 1 ? ' file' : ' files') + ' skipped or damaged';
    element.querySelector('ul').replaceChildren(
        ...all.slice(0, 200).map(({path, why}) => make('li', {text: path + ': ' + why})));
  }
  async function loadDetail(id) {
    const detail = await source.run(id);
    if (!detail) return;  // a report without the files of this run
    details.set(id, detail);
    if (detail.summary) list.update([detail.summary]);
    showSkipped();
  }
  // Draws the profile when it arrives: reading one may take seconds.
  async function loadProfile(id, name) {
    const loading = {name, data: null, problem: null};
    profiles.set(id, loading);
    try {
      loading.data = await source.profile(id, name);
    } catch (error) {
      loading.problem = error.message;
      if (!(error.status > 0)) {  // no reply: it is asked for again with the next details
        profiles.delete(id);
        fail(error);
      }
    }
    const other = profiles.get(id);  // chosen meanwhile
    if (!other || other === loading) drawSections(['profile']);
  }
  // The last profile of each run that is shown.
  function loadProfiles() {
    for (const id of view.runs) {
      const names = (details.get(id) || {}).profiles || [];
      if (names.length && !profiles.has(id)) loadProfile(id, names[names.length - 1]);
    }
  }
  function chooseProfile(id, name) {
    loadProfile(id, name);
    drawSections(['profile']);
  }
  async function loadComparison() {
    const ids = [...view.runs];
    comparison = null;
    if (ids.length < 2) return;
    const reply = await source.compare(ids);
    if (ids.join() === view.runs.join()) comparison = reply;
  }

  // Shows the runs of `view`. What arrives after a newer selection is dropped.
  let selection = 0;
  async function showSelected() {
    const mine = ++selection;
    list.setSelected(view.runs);
    drawSummary();
    listen();
    try {
      await Promise.all(
          [...view.runs.filter((id) => list.runs.has(id)).map(loadDetail), loadComparison()]);
    } catch (error) {
      fail(error);
    }
    if (mine !== selection) return;
    drawCurves();
    loadProfiles();
    drawSections();
    drawSummary();
  }
  function select(ids) {
    view.runs = ids;
    view.zoom = null;
    remember();
    showZoom();
    showSelected();
  }

  // ---- live

  function listen() {
    if (stream) stream.close();
    stream = null;
    LogPanel.forget();
    if (document.hidden && source.live) {
      closed = connectedBefore = true;  // what is new until then is asked for
      connection('static', 'paused');
      return;
    }
    stream = source.listen(view.runs, receive, (open) => {
      if (!source.live) return;
      if (open && closed && connectedBefore) resynchronize();
      closed = !open;
      connectedBefore = connectedBefore || open;
      if (open)
        connection('live', 'live');
      else
        connection('lost', 'no connection to the server, trying again');
    });
  }
  let connectedBefore = false;
  // After a lost connection some rows may be missing.
  function resynchronize() {
    loadRuns()
        .then(() => {
          curves.reload();
          return refreshDetails();
        })
        .catch(fail);
  }
  function receive(kind, data) {
    if (kind === 'runs')
      receiveRuns(data);
    else if (kind === 'points')
      curves.append(data);
    else if (kind === 'log')
      LogPanel.receive(data);
    else if (kind === 'reload') {
      curves.store.drop(data.id);
      curves.load(data.id);
      refreshSoon();
    } else
      listen();
  }
  function receiveRuns(data) {
    list.update(data.runs || [], data.removed || []);
    if (!view.runs.length && list.runs.size) {
      notice('');  // that there are no runs
      select([firstRun()]);
      return;
    }
    const changed = new Set((data.runs || []).map((run) => run.id));
    if (view.runs.some((id) => changed.has(id))) {
      drawSummary();
      refreshSoon();
    }
  }
  // Panels besides the curves change seldom: they are asked for again at most every ten seconds.
  function refreshSoon() {
    if (refreshAt) return;
    refreshAt = setTimeout(() => {
      refreshAt = 0;
      refreshDetails().catch(fail);
    }, 10000);
  }
  const kLiveSections = ['goodput', 'ranks', 'experts', 'samples', 'events', 'compare'];
  async function refreshDetails() {
    const mine = selection;
    const before = new Map(view.runs.map((id) => [id, JSON.stringify(parts(id))]));
    await Promise.all(view.runs.filter((id) => list.runs.has(id)).map(loadDetail));
    if (mine !== selection) return;
    for (const run of curves.runs) run.events = (details.get(run.id) || {}).events || [];
    const changed = kLiveSections.filter(
        (section, i) => view.runs.some(
            (id) =>
                JSON.stringify(parts(id)[i]) !== JSON.stringify(JSON.parse(before.get(id))[i])));
    loadProfiles();
    if (changed.length) drawSections(changed);
  }
  // What the live sections show of a run.
  function parts(id) {
    const detail = details.get(id) || {};
    const {goodput, ranks, experts, samples, events, summary} = detail;
    return [goodput, ranks, experts, samples, events, summary].map((part) => part ?? null);
  }
  function firstRun() {
    const runs = [...list.runs.values()].sort(RunsList.orders.updated);
    return (runs.find((run) => run.state === 'running') || runs[0]).id;
  }

  // ---- settings

  // The slider moves evenly through what the eye sees: 0, 0.9, 0.99, 0.999 are equally far apart.
  const weightOf = (slider) => (slider <= 0 ? 0 : Number((1 - 10 ** (-slider / 33.4)).toFixed(4)));
  const sliderOf = (weight) => Math.round(-Math.log10(1 - weight) * 33.4);

  function remember() {
    history.replaceState(null, '', location.pathname + location.search + ViewState.serialize(view));
  }
  function showZoom() {
    byId('reset-zoom').disabled = !view.zoom;
    byId('range').textContent =
        view.zoom ? curves.describeX(view.zoom[0]) + ' to ' + curves.describeX(view.zoom[1]) : '';
  }
  function showSettings() {
    for (const radio of document.querySelectorAll('#axis input'))
      radio.checked = radio.value === view.axis;
    byId('log-x').checked = view.logX;
    byId('log-y').checked = view.log.includes('loss');
    byId('smoothing').value = sliderOf(view.smoothing);
    byId('smoothing-value').textContent =
        view.smoothing ? view.smoothing.toFixed(view.smoothing > 0.99 ? 3 : 2) : 'off';
    showZoom();
  }
  function connectSettings() {
    for (const radio of document.querySelectorAll('#axis input'))
      radio.addEventListener('change', () => curves.setAxis(radio.value));
    byId('log-x').addEventListener('change', (event) => curves.setLogX(event.target.checked));
    byId('log-y').addEventListener('change', (event) => {
      for (const id of ['loss', 'valid']) curves.setLog(id, event.target.checked);
    });
    byId('smoothing')
        .addEventListener(
            'input', (event) => curves.setSmoothing(weightOf(Number(event.target.value))));
    byId('reset-zoom').addEventListener('click', () => curves.setZoom(null));
    byId('toggle-runs').addEventListener('click', () => {
      const hidden = document.body.classList.toggle('without-runs');
      byId('toggle-runs').setAttribute('aria-expanded', String(!hidden));
    });
    addEventListener('hashchange', () => {
      Object.assign(view, ViewState.parse(location.hash));
      showSettings();
      curves.reload();
      showSelected();
    });
    // A browser opens six connections to a server at most: those of hidden tabs would leave none.
    document.addEventListener('visibilitychange', listen);
    const repaint = () => {
      Theme.forget();
      drawCurves();
      curves.redrawAll();
      drawSections();
    };
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', repaint);
    // Before the pages are made, canvases need their new sizes and colours at once.
    matchMedia('print').addEventListener('change', () => {
      Theme.forget();
      curves.rebuildNow();
      curves.redrawAll();
      Frames.flush();
    });
  }

  // ---- for tests: what is drawn, read-only

  function observed() {
    const charts = {};
    for (const [id, chart] of curves.charts) {
      charts[id] = {
        points: chart.drawn.points,
        range: chart.scale ? [chart.scale.x.low, chart.scale.x.high] : null,
        rangeY: chart.scale ? [chart.scale.y.low, chart.scale.y.high] : null,
        logarithmic: chart.logarithmic,
        series: chart.visibleCurves().map((curve) => ({
                                            id: curve.run,
                                            key: curve.key,
                                            label: curve.label,
                                            x: [...curve.x],
                                            y: [...curve.y],
                                            smooth: [...curve.smooth]
                                          })),
      };
    }
    return charts;
  }
  const getters = {
    charts: observed,
    selected: () => [...view.runs],
    live: () => !closed,
    bytesReceived: () => source.bytesReceived,
    requests: () => source.requests,
    framesDrawn: () => Frames.counts.framesDrawn,
    lastFrameMs: () => Frames.counts.lastFrameMs,
    longestFrameMs: () => Frames.counts.longestFrameMs,
  };
  const page = {};
  for (const [name, get] of Object.entries(getters)) Object.defineProperty(page, name, {get});
  Object.defineProperty(window, 'kintsugiPage', {value: Object.freeze(page)});

  async function start() {
    buildSections();
    curves = new Curves(source, view, kSections.find((section) => section.id === 'curves').host, {
      changed: () => {
        remember();
        showSettings();
      },
      failed: fail,
    });
    showSettings();
    connectSettings();
    connection(
        'static', source.live ? 'connecting' : 'report of ' + Format.time(source.data.generated_s));
    await loadFirst();
    view.runs = view.runs.filter((id) => list.runs.has(id));
    if (!view.runs.length && list.runs.size)
      view.runs = source.live ? [firstRun()] : [...list.runs.keys()].slice(0, ViewState.kMostRuns);
    remember();
    showSelected();
  }
  // A server that is not there yet is asked again; a refusal is shown.
  async function loadFirst() {
    for (;;) {
      try {
        await loadRuns();
        return;
      } catch (error) {
        fail(error);
        if (!source.live || error.status > 0) return;
        await new Promise((resolve) => setTimeout(resolve, 2000));
      }
    }
  }
  start();
})();
