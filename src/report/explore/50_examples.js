'use strict';

// Examples of documents: kept and removed side by side, and changed ones before and after.
const ExamplesPanel = (() => {
  const {make, wideCard} = Elements;
  const kAtOnce = 4;

  // [{id, step, title, count, kind, list}]: what can be chosen, in the order of the recipe.
  function choices(overview) {
    const of = (kind, rule) =>
        overview.examples.filter((one) => one.kind === kind && one.rule === rule);
    const made = [], seen = new Set();
    const add = (choice) => {
      if (!choice.list.length || seen.has(choice.id)) return;
      seen.add(choice.id);
      made.push(choice);
    };
    for (const step of overview.steps) {
      for (const rule of step.rules)
        add({
          id: 'removed ' + rule.rule,
          kind: 'removed',
          step: step.step,
          title: rule.rule.startsWith(step.step + '.') ? rule.rule.slice(step.step.length + 1) :
                                                         rule.rule,
          count: rule.documents,
          list: of('removed', rule.rule),
          kept: of('kept', step.step)
        });
      const changed = step.notes.find((note) => note.name === 'changed');
      add({
        id: 'changed ' + step.step,
        kind: 'changed',
        step: step.step,
        title: 'changed',
        count: changed ? changed.count : null,
        list: of('changed', step.step)
      });
    }
    return made;
  }
  function list(context, all, chosen) {
    const items = [];
    let step = null;
    for (const choice of all) {
      if (choice.step !== step)
        items.push(make('li', {class: 'name', text: Texts.name(choice.step)}));
      step = choice.step;
      items.push(make(
          'li', {},
          make(
              'button', {
                type: 'button',
                'data-rule': choice.id,
                'aria-current': choice === chosen ? 'true' : null,
                onclick: () => context.choose({rule: choice.id})
              },
              make('span', {text: Texts.name(choice.title, 80)}),
              choice.count === null ?
                  null :
                  make('span', {class: 'number', text: Format.si(choice.count)}))));
    }
    return make('ul', {id: 'rules', 'aria-label': 'Rules'}, ...items);
  }
  // Rows of two columns; more are added by a button.
  function pairs(headings, rows) {
    const host = make('div', {});
    let shown = 0;
    const more = make('button', {type: 'button', class: 'quiet', onclick: () => add()});
    const add = () => {
      const next = rows.slice(shown, shown + kAtOnce);
      shown += next.length;
      for (const row of next)
        more.before(make(
            'div', {class: 'pair'},
            ...row().map((cell) => cell || make('div', {class: 'empty wide-only'}))));
      more.textContent = `${rows.length - shown} more`;
      more.hidden = shown === rows.length;
    };
    host.append(make('div', {class: 'pair columns-of-two'}, ...headings), more);
    add();
    return host;
  }
  function removed(choice) {
    const heading = (kind, text) => make('h4', {class: kind, text});
    const rows = Array.from(
        {length: Math.max(choice.list.length, choice.kept.length)},
        (_, i) => () => [choice.list[i], choice.kept[i]].map((one) => {
          if (!one) return null;
          const made = Texts.plain(one, one.before, one.bytes_before);
          made.dataset.kind = one.kind;
          return made;
        }));
    return pairs(
        [
          heading('removed', `Removed by ${Texts.name(choice.id.slice(8))}`),
          heading('kept', `Passed on by ${Texts.name(choice.step)}`)
        ],
        rows);
  }
  function changed(choice) {
    const rows = choice.list.map((one) => () => {
      const made = Texts.changed(one);
      made[0].dataset.kind = 'before';
      made[1].dataset.kind = 'after';
      return made;
    });
    return pairs(
        [make('h4', {text: `Before ${Texts.name(choice.step)}`}), make('h4', {text: 'After'})],
        rows);
  }
  function cards(context) {
    const all = choices(context.overview);
    if (!all.length) return [];
    const chosen = all.find((choice) => choice.id === context.view.rule) || all[0];
    const body = make(
        'div', {id: 'example-list'}, chosen.kind === 'removed' ? removed(chosen) : changed(chosen));
    return [wideCard(null, make('div', {class: 'examples'}, list(context, all, chosen), body))];
  }
  return {cards, choices};
})();

// What the step for personal data has replaced.
const MaskedPanel = (() => {
  const {card, column, make, numbers, table} = Elements;
  const kMostSpans = 200;

  function cards(context) {
    const step = context.overview.steps.find((one) => one.step === 'personal_data');
    if (!step) return [];
    const spans = context.overview.examples
                      .filter((one) => one.kind === 'changed' && one.rule === 'personal_data')
                      .flatMap(Texts.replacements)
                      .slice(0, kMostSpans);
    const largest = Math.max(1, ...step.notes.map((note) => note.count));
    const kinds = table(
        [
          column('kind', (note) => Texts.name(note.name)),
          column(
              '', (note) => Charts.bar([{share: note.count / largest, colour: 'var(--series-0)'}]),
              'fill'),
          numbers('spans', (note) => Format.count(note.count)),
        ],
        [...step.notes].sort((a, b) => b.count - a.count));
    kinds.classList.add('bars');
    const made = [card('All documents', kinds)];
    if (spans.length)
      made.push(card(
          'In the examples',
          make(
              'div', {class: 'tall'},
              table(
                  [
                    column(
                        'text',
                        (span) => make(
                            'bdi', {},
                            make('span', {class: 'soft'}, '… ', ...Texts.nodes(span.context)),
                            make('mark', {class: 'gone'}, ...Texts.nodes(span.before)))),
                    column(
                        'replaced by',
                        (span) => make('mark', {class: 'new'}, ...Texts.nodes(span.after))),
                  ],
                  spans))));
    made[made.length - 1].classList.add('spans');
    return [make('div', {class: 'two'}, ...made)];
  }
  return {cards};
})();

// Random documents of the output.
const SamplePanel = (() => {
  const {make, wideCard} = Elements;

  function cards(context) {
    const {sample, problem} = context;
    if (!sample && !problem) return [wideCard(null, make('p', {text: 'Drawing documents …'}))];
    if (problem) return [wideCard(null, make('p', {text: Texts.name(problem)}))];
    const other = make('button', {
      type: 'button',
      class: 'quiet',
      id: 'other-sample',
      text: 'others',
      onclick: () => context.chooseSample()
    });
    const grid = make('div', {class: 'two'}, ...sample.documents.map((one) => {
      const made =
          Texts.plain({...one, origin: one.url || one.origin || one.file}, one.text, one.bytes);
      made.dataset.kind = 'sample';
      return made;
    }));
    return [wideCard(
        null,
        make(
            'div', {class: 'head'}, make('span', {
              class: 'soft',
              text: sample.documents.length ?
                  `${sample.documents.length} random documents of the output (seed ${
                      sample.seed})` :
                  'No documents are written yet.'
            }),
            other),
        grid, ...sample.notes.map((note) => make('p', {text: Texts.name(note)})))];
  }
  return {cards};
})();
