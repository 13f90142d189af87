'use strict';

// Puts the page together: which directory is shown, and what is asked from the server or found in
// the page.
(() => {
  const {byId, make, wideCard} = Elements;

  class EmbeddedSource {
    constructor(data) {
      this.live = false;
      this.data = data;
    }
    async directories() {
      return this.data.names;
    }
    async overview(id) {
      return this.data.overview[id];
    }
    // Seeds begin with 1; there are some samples in the page.
    async sample(id, seed) {
      const all = this.data.sample[id];
      return all[(seed - 1) % all.length];
    }
  }
  class ServerSource extends Server.Connection {
    constructor() {
      super();
      this.live = true;
    }
    directories() {
      return this.ask('directories', []);
    }
    overview(id) {
      return this.ask('overview', [['id', id]]);
    }
    sample(id, seed) {
      return this.ask('sample', [['id', id], ['seed', seed]]);
    }
  }

  const data = Server.embedded();
  const source = data ? new EmbeddedSource(data) : new ServerSource();
  const kPanels = {curation: CurationPanels, dedup: DedupPanels};
  let names = [];
  const view = {directory: 0, rule: null, language: null, seed: 1};  // kept in the address
  let overview = null, sample = null, problem = null;

  function readAddress() {
    const pairs = new URLSearchParams(location.hash.replace(/^#/, ''));
    const whole = (key, otherwise) => {
      const value = Number(pairs.get(key) ?? otherwise);
      return Number.isSafeInteger(value) && value >= 0 ? value : otherwise;
    };
    view.directory = whole('directory', 0);
    view.seed = whole('seed', 1) || 1;
    view.rule = pairs.get('rule');
    view.language = pairs.get('language');
  }
  function remember() {
    const pairs = new URLSearchParams();
    if (view.directory) pairs.set('directory', view.directory);
    if (view.seed !== 1) pairs.set('seed', view.seed);
    if (view.rule !== null) pairs.set('rule', view.rule);
    if (view.language !== null) pairs.set('language', view.language);
    const hash = pairs.toString();
    history.replaceState(null, '', location.pathname + location.search + (hash ? '#' + hash : ''));
  }

  // ---- drawing

  const context = () => ({overview, view, sample, problem, choose, chooseSample});
  const kSectionsOf = {rule: ['examples'], language: ['lengths']};

  function draw(only) {
    const panels = overview && kPanels[overview.kind];
    if (!panels) return;
    if (!only) {
      byId('panels').replaceChildren();
      byId('sections').replaceChildren();
      drawSummary(panels);
    }
    for (const section of panels.sections) {
      if (only && !only.includes(section.id)) continue;
      const cards = cardsOf(section);
      const host = make('div', {class: 'cards'}, ...cards);
      const old = byId('section-' + section.id);
      if (old) {
        old.lastChild.replaceWith(host);
        continue;
      }
      if (!cards.length) continue;
      const element = make(
          'section', {class: 'section', id: 'section-' + section.id},
          make('h2', {text: section.title}), host);
      byId('panels').append(element);
      byId('sections').append(make('button', {
        type: 'button',
        text: section.title,
        'data-section': section.id,
        onclick: () => element.scrollIntoView({block: 'start'})
      }));
    }
  }
  function cardsOf(section) {
    try {
      return section.cards(context());
    } catch (error) {
      console.error(error);
      return [wideCard(
          null, make('p', {
            text: 'This section cannot be drawn: a file is damaged (' + error.message + ').'
          }))];
    }
  }
  function drawSummary(panels) {
    const figure = ([label, value, unit]) => make(
        'div', {class: 'figure'}, make('div', {class: 'label', text: label}),
        make(
            'div', {class: 'value', text: value}, unit ? make('small', {text: ' ' + unit}) : null));
    const state = overview.kind === 'curation' && !overview.is_complete ? 'unfinished' : null;
    byId('section-summary')
        .replaceChildren(
            make(
                'div', {class: 'main-title'}, make('h2', {text: Texts.name(names[view.directory])}),
                make('span', {
                  class: 'soft',
                  text: overview.kind === 'dedup' ? 'deduplication' : overview.kind
                }),
                state ? make('span', {class: 'badge state-running', text: state}) : null),
            make('div', {class: 'figures-strip section'}, ...panels.figures(overview).map(figure)));
    document.title = Texts.name(names[view.directory], 80) + ' – Kintsugi';
  }
  function drawDirectories() {
    const several = names.length > 1;
    document.body.classList.toggle('without-runs', !several);
    byId('toggle-list').hidden = !several;
    byId('directories')
        .replaceChildren(...names.map(
            (name, id) => make('li', {}, make('button', {
                                 type: 'button',
                                 'data-directory': id,
                                 'aria-current': id === view.directory ? 'true' : null,
                                 text: Texts.name(name),
                                 onclick: () => {
                                   Object.assign(
                                       view, {directory: id, rule: null, language: null, seed: 1});
                                   remember();
                                   load();
                                 }
                               }))));
  }

  // ---- what was chosen

  // Changes the view; `section` is scrolled to.
  function choose(change, section) {
    Object.assign(view, change);
    remember();
    const at = byId('rules') ? byId('rules').scrollTop : 0;
    draw(Object.keys(change).flatMap((key) => kSectionsOf[key] || []));
    if (byId('rules')) byId('rules').scrollTop = at;
    if (section) byId('section-' + section)?.scrollIntoView({block: 'start'});
  }
  function chooseSample() {
    ++view.seed;
    remember();
    loadSample();
  }

  // ---- loading

  function notice(text) {
    byId('notice').textContent = text;
    byId('notice').hidden = !text;
  }
  let loading = 0;  // what arrives after a newer choice is dropped
  async function load() {
    const mine = ++loading;
    overview = sample = problem = null;
    drawDirectories();
    byId('panels').replaceChildren();
    byId('sections').replaceChildren();
    byId('section-summary').replaceChildren();
    try {
      const reply = await source.overview(view.directory);
      if (mine !== loading) return;
      overview = reply;
      notice('');
      draw();
      loadSample();
    } catch (error) {
      if (mine === loading) notice(Server.describe(error, 'kintsugi data explore'));
    }
  }
  async function loadSample() {
    const mine = loading;
    try {
      const reply = await source.sample(view.directory, view.seed);
      if (mine !== loading) return;
      sample = reply;
      problem = null;
    } catch (error) {
      if (mine !== loading) return;
      problem = error.message;
    }
    draw(['sample']);
  }
  async function start() {
    readAddress();
    byId('toggle-list').addEventListener('click', () => {
      const hidden = document.body.classList.toggle('without-runs');
      byId('toggle-list').setAttribute('aria-expanded', String(!hidden));
    });
    byId('connection').textContent =
        source.live ? '' : 'page of ' + Format.time(source.data.generated_s);
    byId('connection').hidden = source.live;
    addEventListener('hashchange', () => {
      readAddress();
      load();
    });
    try {
      names = (await source.directories()).directories;
    } catch (error) {
      notice(Server.describe(error, 'kintsugi data explore'));
      return;
    }
    if (view.directory >= names.length) view.directory = 0;
    await load();
  }

  // For tests: what is shown, read-only.
  const page = {};
  for (const [name, get] of Object.entries({
         kind: () => overview && overview.kind,
         rule: () => view.rule,
         seed: () => (sample ? sample.seed : null),
       }))
    Object.defineProperty(page, name, {get});
  Object.defineProperty(window, 'kintsugiPage', {value: Object.freeze(page)});
  start();
})();
