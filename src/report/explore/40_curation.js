'use strict';

// The statistics of a curation: steps, lengths, languages, rules, inputs.
const CurationPanels = (() => {
  const {card, column, make, named, numbers, table, wideCard} = Elements;
  const kShownLanguages = 9;  // with a colour of their own
  const percent = (part, whole) => Format.percent(whole ? part / whole : NaN);
  const share = (part, whole) => (whole ? part / whole : 0);
  // A column that narrow screens do not show.
  const wide = (made) =>
      ({...made, class: (made.class || '') + ' wide-only', head: (made.head || '') + ' wide-only'});

  // ---- steps

  function steps(context) {
    const {steps, read} = context.overview;
    const largest = Math.max(read.documents, ...steps.map((step) => step.in.documents), 1);
    const bar = (row) => Charts.bar([
      {
        share: row.out.documents / largest,
        className: 'kept',
        title: Format.count(row.out.documents) + ' passed on'
      },
      {
        share: (row.in.documents - row.out.documents) / largest,
        className: 'removed',
        title: Format.count(row.in.documents - row.out.documents) + ' removed'
      },
    ]);
    const notes =
        (row) => [...row.notes.map(({name, count}) => Format.count(count) + ' ' + Texts.name(name)),
                  ...(row.leaks.samples ?
                          [Format.count(row.leaks.samples) + ' samples of tasks found'] :
                          []),
    ].join(', ');
    const columns = [
      column('step', (row) => Texts.name(row.step)),
      column('', bar, 'fill'),
      numbers('documents', (row) => Format.count(row.in.documents)),
      wide(numbers('removed', (row) => Format.count(row.in.documents - row.out.documents))),
      numbers('', (row) => percent(row.in.documents - row.out.documents, row.in.documents)),
      wide(numbers('text', (row) => Format.bytes(row.out.bytes))),
      wide(column('noted', notes, 'soft')),
    ];
    const key = make(
        'div', {class: 'key'}, named('var(--series-2)', 'passed on'),
        named('var(--series-1)', 'removed'));
    const made = table(columns, steps);
    made.classList.add('bars');
    return [wideCard(null, made, key)];
  }

  // ---- lengths

  function lengths(context) {
    const {languages, edges} = context.overview;
    if (!languages.length) return [];
    const chosen = languages.filter(
        (one) => context.view.language === null || one.language === context.view.language);
    const select = make(
        'select', {
          id: 'length-language',
          'aria-label': 'Language of the documents',
          onchange: (event) => context.choose(
              {language: event.target.value === '*' ? null : event.target.value.slice(1)})
        },
        make('option', {value: '*', text: 'all languages'}),
        ...languages.map((one) => make('option', {
                           value: '=' + one.language,
                           selected: one.language === context.view.language,
                           text: Texts.language(one.language)
                         })));
    const of = (key) => Charts.added(chosen.map((one) => one[key]), edges.length);
    const one = (title, unit) => {
      const before = of(unit + '_before'), after = of(unit + '_after');
      const text = (counts) => {
        const value = Charts.median(counts, edges);
        return unit === 'bytes' ? Format.bytes(value) : Format.number(value, 3);
      };
      return card(
          title, Charts.histogram({before, after, edges, unit, label: title}),
          make('p', {text: `Median: ${text(before)} read, ${text(after)} written`}));
    };
    const key = make(
        'div', {class: 'head over'}, languages.length > 1 ? select : null,
        make(
            'div', {class: 'key'}, named('var(--cell)', 'read'),
            named('var(--series-0)', 'written')),
        make(
            'span',
            {class: 'soft', text: 'documents by length; words are what is between spaces'}));
    return [key, make('div', {class: 'two'}, one('Bytes', 'bytes'), one('Words', 'words'))];
  }

  // ---- languages

  function languages(context) {
    const {languages: all} = context.overview;
    if (all.length < 2) return [];
    const largest =
        Math.max(1, ...all.map((one) => Math.max(one.documents_before, one.documents_after)));
    const columns = [
      column('language', (row) => make('button', {
                           type: 'button',
                           class: 'link',
                           text: Texts.language(row.language),
                           title: 'Lengths of this language',
                           onclick: () => context.choose({language: row.language}, 'lengths')
                         })),
      column(
          '', (row) => Charts.bar([
            {
              share: Math.min(row.documents_after, row.documents_before) / largest,
              className: 'kept'
            },
            {
              share: Math.max(0, row.documents_before - row.documents_after) / largest,
              className: 'removed'
            },
          ]),
          'fill'),
      numbers('read', (row) => Format.count(row.documents_before)),
      numbers('written', (row) => Format.count(row.documents_after)),
      numbers('', (row) => percent(row.documents_after, row.documents_before)),
    ];
    const made = table(columns, all);
    made.classList.add('bars');
    return [wideCard(null, make('div', {class: 'tall'}, made))];
  }

  // ---- rules by language

  // The languages with most removed documents, the others as one.
  function coloured(rules) {
    const sums = new Map();
    for (const rule of rules)
      for (const {language, documents} of rule.languages)
        sums.set(language, (sums.get(language) || 0) + documents);
    return [...sums].sort((a, b) => b[1] - a[1]).map(([language]) => language);
  }
  function rules(context) {
    const all = allRules(context.overview);
    if (!all.length) return [];
    const order = coloured(all), first = order.slice(0, kShownLanguages);
    const colour = (language) => {
      const at = first.indexOf(language);
      return order.length < 2 ? 'var(--series-1)' : at < 0 ? 'var(--cell)' : `var(--series-${at})`;
    };
    const largest = Math.max(1, ...all.map((rule) => rule.documents));
    const hasExamples = (rule) => context.overview.examples.some((one) => one.rule === rule.rule);
    const sorted = (rule) => [...rule.languages].sort(
        (a, b) => order.indexOf(a.language) - order.indexOf(b.language));
    const bar = (rule) => Charts.bar(
        sorted(rule).map(({language, documents}) => ({
                           share: documents / largest,
                           colour: colour(language),
                           title: `${Texts.language(language)}: ${Format.count(documents)} (${
                               percent(documents, rule.documents)})`
                         })));
    const columns = [
      column('rule', (rule) => !hasExamples(rule) ? Texts.name(rule.rule) : make('button', {
                       type: 'button',
                       class: 'link',
                       text: Texts.name(rule.rule),
                       title: 'Examples of this rule',
                       onclick: () => context.choose({rule: 'removed ' + rule.rule}, 'examples')
                     })),
      column('', bar, 'fill'),
      numbers('removed', (rule) => Format.count(rule.documents)),
      wide(numbers('of its input', (rule) => percent(rule.documents, rule.step.in.documents))),
      wide(numbers('text', (rule) => Format.bytes(rule.bytes))),
    ];
    const made = table(columns, all);
    made.classList.add('bars');
    made.id = 'rule-table';
    const key = order.length < 2 ?
        null :
        make(
            'div', {class: 'key'}, ...first.map((one) => named(colour(one), Texts.language(one))),
            order.length > first.length ? named('var(--cell)', 'others') : null);
    const cards = [wideCard(null, made, key)];
    if (order.length > 1) cards.push(matrix(all, order.slice(0, 12), context));
    return cards;
  }
  const allRules = (overview) =>
      overview.steps.flatMap((step) => step.rules.map((rule) => ({...rule, step})));

  // Of the documents of a language that were read, the share that a rule removed.
  function matrix(rules, order, context) {
    const read =
        new Map(context.overview.languages.map((one) => [one.language, one.documents_before]));
    const cell = (rule, language) => {
      const found = rule.languages.find((one) => one.language === language);
      return found ? share(found.documents, read.get(language)) : 0;
    };
    const columns = [
      column('rule', (rule) => make('span', {class: 'mono', text: Texts.name(rule.rule)})),
      ...order.map(
          (language) => numbers(
              Texts.language(language),
              (rule) => {
                const value = cell(rule, language);
                return make('span', {
                  text: value ? Format.percent(value, 2) : '·',
                  class: value ? null : 'soft',
                  'data-share': value
                });
              }))
    ];
    const made = table(columns, rules);
    made.classList.add('heat');
    for (const span of made.querySelectorAll('[data-share]')) {
      const strength = Math.round(55 * Math.sqrt(Number(span.dataset.share)));
      span.parentNode.style.background =
          `color-mix(in srgb, var(--series-1) ${strength}%, transparent)`;
    }
    return wideCard(
        'Removed of each language', make('p', {text: 'Of all documents read in that language.'}),
        make('div', {class: 'scroll'}, made));
  }

  // ---- evaluation tasks, inputs, recipe

  function leaks(context) {
    return context.overview.steps.filter((step) => step.leaks.samples).map((step) => {
      const {samples, most} = step.leaks;
      const columns = [
        column('sample', (row) => Texts.name(row.sample), 'value'),
        numbers('documents', (row) => Format.count(row.documents)),
        numbers('largest share', (row) => Format.percent(row.share)),
      ];
      return wideCard(
          null, make('p', {
            text: `${Format.count(samples)} samples of evaluation tasks were found` +
                (samples > most.length ? `; those found most completely:` : ':')
          }),
          make('div', {class: 'tall'}, table(columns, most)));
    });
  }
  function inputs(context) {
    const {files, most} = context.overview.inputs;
    const {skipped, invalid_records: invalid, first_invalid: first} = context.overview;
    if (!most.length) return [];
    const columns = [
      column('file', (row) => make('span', {class: 'mono', text: Texts.name(row.file)}), 'value'),
      numbers('documents', (row) => Format.count(row.read.documents)),
      numbers('written', (row) => Format.count(row.kept.documents)),
      numbers('', (row) => percent(row.kept.documents, row.read.documents)),
      numbers('text', (row) => Format.bytes(row.read.bytes)),
    ];
    const notes = [];
    if (files > most.length)
      notes.push(`The largest ${Format.count(most.length)} of ${Format.count(files)} files.`);
    if (invalid)
      notes.push(`${Format.count(invalid)} malformed records, the first: ${Texts.name(first)}`);
    if (skipped.parts)
      notes.push(`${Format.count(skipped.parts)} damaged parts: ${
          skipped.first.map((one) => Texts.name(one)).join('; ')}`);
    return [wideCard(
        null, make('div', {class: 'tall'}, table(columns, most)),
        ...notes.map((text) => make('p', {text})))];
  }
  function recipe(context) {
    if (!context.overview.recipe) return [];
    const pre = make('pre', {class: 'recipe', tabindex: '0', 'aria-label': 'Recipe'});
    pre.append(...Texts.nodes(context.overview.recipe));
    return [wideCard(null, pre)];
  }

  const figures = (overview) => [
      ['read', Format.si(overview.read.documents), 'documents'],
      ['written', Format.si(overview.kept.documents), 'documents'],
      ['kept', percent(overview.kept.documents, overview.read.documents)],
      ['text read', Format.bytes(overview.read.bytes)],
      ['text written', Format.bytes(overview.kept.bytes)],
      ['text kept', percent(overview.kept.bytes, overview.read.bytes)],
      ['languages', Format.count(overview.languages.filter((one) => one.language).length)],
      ['inputs', Format.count(overview.inputs.files), 'files'],
      ['output', Format.count(overview.files), 'files'],
  ];
  const sections = [
    {id: 'steps', title: 'Steps', cards: steps},
    {id: 'rules', title: 'Rules', cards: rules},
    {id: 'examples', title: 'Examples', cards: (context) => ExamplesPanel.cards(context)},
    {id: 'masked', title: 'Masked spans', cards: (context) => MaskedPanel.cards(context)},
    {id: 'lengths', title: 'Lengths', cards: lengths},
    {id: 'languages', title: 'Languages', cards: languages},
    {id: 'leaks', title: 'Evaluation tasks', cards: leaks},
    {id: 'sample', title: 'Documents', cards: (context) => SamplePanel.cards(context)},
    {id: 'inputs', title: 'Inputs', cards: inputs},
    {id: 'recipe', title: 'Recipe', cards: recipe},
  ];
  return {allRules, figures, sections};
})();
