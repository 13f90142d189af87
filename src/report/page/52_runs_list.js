'use strict';

// The names of runs on the page. Runs in different folders may have the same name: then the folders
// before it are added, as few as tell the runs apart.
const RunNames = (() => {
  const kMostParts = 8;  // folders are searched six levels deep

  function shownOf(runs) {
    const names = new Map();
    for (const group of groupedByName(runs).values())
      if (group.length === 1)
        names.set(group[0].id, group[0].leaf);
      else
        nameByFolders(group, names);
    return names;
  }
  function groupedByName(runs) {
    const groups = new Map();
    for (const run of runs) {
      if (!groups.has(run.leaf)) groups.set(run.leaf, []);
      groups.get(run.leaf).push(run);
    }
    return groups;
  }
  function nameByFolders(group, names) {
    let left = group.map(({id}) => id);
    for (let parts = 2; parts <= kMostParts && left.length; ++parts) {
      const end = (id) => id.split('/').slice(-parts).join('/');
      const counts = new Map();
      for (const {id} of group) counts.set(end(id), (counts.get(end(id)) || 0) + 1);
      for (const id of left)
        if (counts.get(end(id)) === 1) names.set(id, end(id));
      left = left.filter((id) => !names.has(id));
    }
    for (const id of left) names.set(id, id);
  }
  return {shownOf};
})();

// The list of runs: search, order, selection. The first selected run is the main one.
class RunsList {
  constructor(select) {
    this.select = select;  // called with the selected ids
    this.runs = new Map();
    this.rows = new Map();
    this.selected = [];
    this.list = Elements.byId('runs');
    this.search = Elements.byId('run-search');
    this.order = Elements.byId('run-sort');
    this.search.addEventListener('input', () => this.arrange());
    this.order.addEventListener('change', () => this.arrange());
    this.list.addEventListener('keydown', (event) => this.key(event));
  }

  // summaries: new or changed runs.
  update(summaries, removed = []) {
    for (const id of removed) {
      this.runs.delete(id);
      if (this.rows.has(id)) this.rows.get(id).element.remove();
      this.rows.delete(id);
    }
    let renamed = removed.length > 0;
    for (const summary of summaries) {
      const before = this.runs.get(summary.id);
      const known = before && before.leaf === summary.name;
      renamed = renamed || !known;
      const run = {...summary, leaf: summary.name, name: known ? before.name : summary.name};
      this.runs.set(run.id, run);
      if (!this.rows.has(run.id)) this.rows.set(run.id, this.makeRow(run.id));
      this.fillRow(this.rows.get(run.id), run);
    }
    if (renamed) this.nameRuns();
    Frames.request(this.arrangeLater || (this.arrangeLater = () => this.arrange()));
  }
  nameRuns() {
    for (const [id, name] of RunNames.shownOf(this.runs.values())) {
      const run = this.runs.get(id);
      if (run.name === name) continue;
      run.name = name;
      this.fillRow(this.rows.get(id), run);
    }
  }
  setSelected(ids) {
    const before = new Set([...this.selected, ...ids]);
    this.selected = ids;
    for (const id of before)
      if (this.rows.has(id)) this.markRow(id);
  }

  makeRow(id) {
    const {make} = Elements;
    const row = {
      box: make('input', {
        type: 'checkbox',
        onclick: (event) => {
          event.stopPropagation();
          this.toggle(id);
        }
      }),
      name: make('button', {class: 'name', type: 'button'}),
      badge: make('span', {class: 'badge'}),
      progress: make('div', {}),
      left: make('span'),
      loss: make('b'),
      right: make('span'),
      message: make('div', {class: 'message'}),
    };
    row.bar = make(
        'div',
        {class: 'progress', role: 'progressbar', 'aria-valuemin': '0', 'aria-valuemax': '100'},
        row.progress);
    row.element = make(
        'li', {class: 'run', 'data-run': id, onclick: () => this.choose(id)}, row.box, row.name,
        row.badge, row.message, row.bar,
        make('div', {class: 'figures'}, row.left, row.loss, row.right));
    return row;
  }
  fillRow(row, run) {
    const state = RunsList.shownState(run);
    const message = RunsList.messageOf(run);
    row.name.textContent = run.name;
    row.name.title = run.id;
    row.box.setAttribute(
        'aria-label', 'Show ' + run.name + ' together with the other selected runs');
    row.badge.textContent = state;
    row.badge.className = 'badge state-' + state;
    row.element.dataset.state = state;
    row.message.textContent = message;
    row.message.title = message;
    row.message.className = 'message state-' + state;
    row.message.hidden = !message;
    const share = run.total_steps > 0 ? Math.min(1, run.step / run.total_steps) : 0;
    row.progress.style.width = 100 * share + '%';
    row.progress.className = 'state-' + state;
    row.bar.setAttribute('aria-valuenow', String(Math.round(100 * share)));
    row.bar.setAttribute('aria-label', 'Progress of ' + run.name);
    row.left.textContent =
        Format.si(run.step) + (run.total_steps ? ' / ' + Format.si(run.total_steps) : '');
    const broken = RunsList.lossIsNotFinite(run);
    row.loss.textContent = broken || Format.known(run.loss) ? RunsList.lossOf(run) : '';
    row.loss.className = broken ? 'worse' : '';
    row.right.textContent = state === 'running' && Format.known(run.eta_s) ?
        'ETA ' + Format.seconds(run.eta_s) :
        Format.ago(run.updated_s);
    this.markRow(run.id);
  }
  markRow(id) {
    const {element, box} = this.rows.get(id);
    const slot = this.selected.indexOf(id);
    element.classList.toggle('selected', slot >= 0);
    element.classList.toggle('main', slot === 0);
    box.checked = slot >= 0;
    box.style.accentColor = slot >= 0 && this.selected.length > 1 ? Theme.series(slot) : '';
  }

  arrange() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (run) => {
      const text = [
        run.name, run.id, RunsList.shownState(run), run.model, run.stage
      ].join(' ').toLowerCase();
      return words.every((word) => text.includes(word));
    };
    const shown = [...this.runs.values()].filter(fits).sort(RunsList.orders[this.order.value]);
    const elements = shown.map((run) => this.rows.get(run.id).element);
    const current = this.list.children;
    const same = current.length === elements.length &&
        elements.every((element, i) => current[i] === element);
    if (!same) this.place(elements);
    Elements.byId('run-count').textContent = shown.length === this.runs.size ?
        this.runs.size + (this.runs.size === 1 ? ' run' : ' runs') :
        shown.length + ' of ' + this.runs.size + ' runs';
  }
  // Moving the focused element would drop the focus.
  place(elements) {
    const focused = document.activeElement;
    this.list.replaceChildren(...elements);
    if (focused && this.list.contains(focused)) focused.focus({preventScroll: true});
  }

  choose(id) {
    this.select([id]);
  }
  toggle(id) {
    const without = this.selected.filter((other) => other !== id);
    const ids = without.length === this.selected.length ? [...this.selected, id] : without;
    this.select(ids.slice(0, ViewState.kMostRuns));
  }
  key(event) {
    if (event.key !== 'ArrowDown' && event.key !== 'ArrowUp') return;
    const row = event.target.closest('.run');
    const next =
        row && (event.key === 'ArrowDown' ? row.nextElementSibling : row.previousElementSibling);
    if (!next) return;
    next.querySelector('.name').focus();
    event.preventDefault();
  }

  // "stalled" is shown in place of "running".
  static shownState(run) {
    return run.stalled && run.state === 'running' ? 'stalled' : run.state || 'unknown';
  }
  static messageOf(run) {
    return [RunsList.lossIsNotFinite(run) ? 'loss is not finite' : '', RunsList.problemOf(run)]
        .filter(Boolean)
        .join(' · ');
  }
  static problemOf(run) {
    const state = RunsList.shownState(run);
    if (!['failed', 'diverged', 'lost', 'stalled'].includes(state)) return '';
    return run.message || run.reason || (state === 'lost' ? 'exited unexpectedly (killed?)' : '');
  }
  // Only records of steps have a learning rate: so there is a newest step, and its loss is null.
  static lossIsNotFinite(run) {
    return run.step > 0 && run.loss === null && Format.known(run.lr);
  }
  static lossOf(run) {
    return RunsList.lossIsNotFinite(run) ? 'nan' : Format.number(run.loss);
  }
}
RunsList.orders = (() => {
  const byName = (a, b) =>
      a.name.localeCompare(b.name, undefined, {numeric: true}) || (a.id < b.id ? -1 : 1);
  const by = (key, direction) => (a, b) => {
    const known = [Format.known(a[key]), Format.known(b[key])];
    if (!known[0] || !known[1]) return known[1] - known[0] || byName(a, b);
    return direction * (a[key] - b[key]) || byName(a, b);
  };
  const kStates =
      ['failed', 'diverged', 'lost', 'stalled', 'running', 'stopped', 'finished', 'unknown'];
  const byState = (a, b) =>
      kStates.indexOf(RunsList.shownState(a)) - kStates.indexOf(RunsList.shownState(b)) ||
      byName(a, b);
  return {
    name: byName,
    updated: by('updated_s', -1),
    loss: by('loss', 1),
    valid_loss: by('valid_loss', 1),
    tokens: by('tokens', -1),
    state: byState,
  };
})();

// The figures of the main run, above the curves.
const Summary = (() => {
  const {make} = Elements;
  function figure(label, value, unit, title, bad) {
    return make(
        'div', {class: 'figure', title: title || null}, make('div', {class: 'label', text: label}),
        make(
            'div', {class: bad ? 'value worse' : 'value', text: value},
            unit ? make('small', {text: ' ' + unit}) : null));
  }
  function figures(run) {
    const known = Format.known;
    const list = [
      figure(
          'step', Format.count(run.step),
          run.total_steps ? 'of ' + Format.count(run.total_steps) : ''),
      figure(
          'loss', RunsList.lossOf(run), '', 'of the last step, nats per token',
          RunsList.lossIsNotFinite(run)),
    ];
    if (known(run.valid_loss)) list.push(figure('validation loss', Format.number(run.valid_loss)));
    list.push(figure('tokens', Format.tokens(run.tokens)));
    if (known(run.tokens_per_s))
      list.push(figure('speed', Format.si(run.tokens_per_s), 'tokens/s'));
    if (known(run.mfu)) list.push(figure('MFU', Format.percent(run.mfu)));
    if (known(run.eta_s) && run.state === 'running')
      list.push(figure('ETA', Format.seconds(run.eta_s)));
    if (known(run.goodput))
      list.push(figure(
          'goodput', Format.percent(run.goodput),
          run.attempts > 1 ? run.attempts + ' attempts' : ''));
    if (known(run.energy_j)) list.push(figure('energy', Format.joules(run.energy_j)));
    if (known(run.j_per_token)) list.push(figure('J/token', Format.number(run.j_per_token, 3)));
    if (known(run.ranks) && run.ranks > 1) list.push(figure('ranks', Format.count(run.ranks)));
    return list;
  }
  function describe(run) {
    const parts = [];
    if (run.model) parts.push(run.model);
    if (run.stage) parts.push('stage ' + run.stage);
    if (run.updated_s) parts.push('updated ' + Format.time(run.updated_s));
    return parts.join(' · ');
  }
  function draw(host, run, others) {
    if (!run) {
      host.replaceChildren();
      return;
    }
    const state = RunsList.shownState(run);
    const message = RunsList.messageOf(run);
    host.replaceChildren(
        make(
            'div', {class: 'main-title'}, make('h2', {id: 'main-name', text: run.name}),
            make('span', {class: 'badge state-' + state, text: state}),
            make('span', {class: 'soft', text: describe(run)}),
            others ? make('span', {
              class: 'soft',
              text: 'and ' + others + (others === 1 ? ' other run' : ' other runs')
            }) :
                     null,
            message ? make('div', {class: 'message', text: message}) : null),
        make('div', {class: 'figures-strip'}, ...figures(run)));
  }
  return {draw};
})();
