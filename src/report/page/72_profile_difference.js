'use strict';

// What got slower between the profiles of two runs: by category and by operation, per step.
const ProfileDifference = (() => {
  // [{name, before, after, delta}] by |delta|. `before` or `after` is null if only the other one
  // has it.
  function rowsOf(first, second) {
    const sum = (list) => {
      const sums = new Map();
      for (const {name, ms} of list || []) sums.set(name, (sums.get(name) || 0) + ms);
      return sums;
    };
    const before = sum(first), after = sum(second);
    const rows = [...new Set([...before.keys(), ...after.keys()])].map(
        (name) => ({
          name,
          before: before.get(name) ?? null,
          after: after.get(name) ?? null,
          delta: (after.get(name) || 0) - (before.get(name) || 0),
        }));
    return rows.sort((a, b) => Math.abs(b.delta) - Math.abs(a.delta));
  }
  function changeOf(row) {
    if (row.before === null) return 'only in the second';
    if (row.after === null) return 'only in the first';
    return row.before > 0 ? (row.delta >= 0 ? '+' : '') + Format.percent(row.delta / row.before) :
                            '';
  }
  function table(rows, first, second, title) {
    const {make} = Elements;
    const sign = (row) =>
        (Math.abs(row.delta) <= 0.01 * Math.max(row.before || 0, row.after || 0) ? null :
             row.delta > 0                                                       ? 'worse' :
                                                                                   'better');
    return make(
        'div', {class: 'tall medium'},
        Elements.table(
            [
              {title, class: 'mono value', cell: (row) => row.name},
              {title: first.name, number: true, cell: (row) => ProfilePanel.ms(row.before)},
              {title: second.name, number: true, cell: (row) => ProfilePanel.ms(row.after)},
              {
                title: 'difference',
                number: true,
                cell: (row) => make('span', {
                  class: sign(row),
                  text: (row.delta > 0 ? '+' : '') + ProfilePanel.ms(row.delta)
                })
              },
              {title: '', number: true, cell: changeOf},
            ],
            rows.slice(0, 100)));
  }
  function cards(first, second) {
    const {wideCard} = Elements;
    const operations = rowsOf(first.profile.data.operations, second.profile.data.operations);
    const categories = rowsOf(first.profile.data.categories, second.profile.data.categories);
    const made = [];
    if (operations.length)
      made.push(wideCard(
          'What changed from ' + first.name + ' to ' + second.name,
          table(operations, first, second, 'operation')));
    if (categories.length)
      made.push(wideCard('Categories', table(categories, first, second, 'category')));
    if (made.length) made[0].id = 'profile-difference';
    return made;
  }
  return {cards};
})();
