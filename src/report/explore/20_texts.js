'use strict';

// Texts of documents. They come from the web: what is invisible in them, or would change the order
// of what is around them, is shown as the number of its character.
const Texts = (() => {
  const {make} = Elements;
  const kHidden = new RegExp(
      '[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u061c\\u180e\\u200b\\u200e\\u200f' +
          '\\u2028-\\u202e\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb\\ud800-\\udfff\\u{e0000}-\\u{e0fff}]',
      'gu');
  const number = (character) =>
      'U+' + character.codePointAt(0).toString(16).toUpperCase().padStart(4, '0');

  // Nodes for a text of a document.
  function nodes(text) {
    const made = [];
    let at = 0;
    for (const found of text.matchAll(kHidden)) {
      if (found.index > at) made.push(text.slice(at, found.index));
      made.push(make('span', {class: 'code', text: number(found[0])}));
      at = found.index + found[0].length;
    }
    made.push(text.slice(at));
    return made;
  }
  // A name in a line: of a file, a rule, a language.
  function name(text, most = 300) {
    const plain = String(text ?? '').replace(kHidden, number).replace(/[\n\t]/g, ' ');
    return plain.length > most ? plain.slice(0, most) + '…' : plain;
  }
  const language = (label) => (label ? name(label, 40) : 'unknown');

  // ---- what differs between two texts

  const kMostEdits = 1200;
  const tokens = (text) => text.match(/[\p{L}\p{M}\p{N}]+|\s+|[^]/gu) || [];

  // Myers, An O(ND) Difference Algorithm: the steps back from the end, or null with too many edits.
  function edits(a, b) {
    const most = Math.min(a.length + b.length, kMostEdits);
    let reach = new Int32Array(2 * most + 3);
    const history = [];
    for (let d = 0; d <= most; ++d) {
      history.push(reach.slice(most - d, most + d + 3));
      for (let k = -d; k <= d; k += 2) {
        const down = k === -d || (k !== d && reach[most + k] < reach[most + k + 2]);
        let x = down ? reach[most + k + 2] : reach[most + k] + 1;
        while (x < a.length && x - k < b.length && a[x] === b[x - k]) ++x;
        reach[most + k + 1] = x;
        if (x >= a.length && x - k >= b.length) return back(a, b, history, d);
      }
    }
    return null;
  }
  function back(a, b, history, edited) {
    const pieces = [];
    let x = a.length, y = b.length;
    for (let d = edited; d > 0; --d) {
      const reach = history[d], at = (k) => reach[k + d + 1];
      const k = x - y;
      const down = k === -d || (k !== d && at(k - 1) < at(k + 1));
      const from = down ? k + 1 : k - 1;
      const fromX = at(from), fromY = fromX - from;
      for (; x > fromX && y > fromY; --y) pieces.push(['same', a[--x]]);
      if (down)
        pieces.push(['added', b[--y]]);
      else
        pieces.push(['removed', a[--x]]);
    }
    while (x > 0) pieces.push(['same', a[--x]]);
    return pieces.reverse();
  }
  // [[kind, text]] with kind same, removed or added. Of an excerpt that ends earlier than its text,
  // what is behind the last equal word is not marked: the other text may have it, too.
  function difference(before, after, isCut) {
    const a = tokens(before), b = tokens(after);
    let begin = 0, end = 0;
    while (begin < a.length && begin < b.length && a[begin] === b[begin]) ++begin;
    while (end < a.length - begin && end < b.length - begin &&
           a[a.length - 1 - end] === b[b.length - 1 - end])
      ++end;
    const middleA = a.slice(begin, a.length - end), middleB = b.slice(begin, b.length - end);
    const middle =
        edits(middleA, middleB) || [['removed', middleA.join('')], ['added', middleB.join('')]];
    const pieces = joined([
      ['same', a.slice(0, begin).join('')], ...middle, ['same', a.slice(a.length - end).join('')]
    ]);
    for (let i = pieces.length - 1; isCut && i >= 0 && pieces[i][0] !== 'same'; --i)
      pieces[i][0] = pieces[i][0] === 'removed' ? 'only-before' : 'only-after';
    return pieces;
  }
  // Neighbours of one kind become one; blanks and single signs between two changes join them.
  function joined(pieces) {
    const out = [];
    let gone = '', added = '';
    const flush = () => {
      if (gone) out.push(['removed', gone]);
      if (added) out.push(['added', added]);
      gone = added = '';
    };
    let held = '';
    for (const [kind, text] of pieces) {
      if (!text) continue;
      if (kind === 'same') {
        held += text;
        continue;
      }
      if (held) {
        const joins = (gone || added) && held.length <= 2 && !/[\p{L}\p{N}\n]/u.test(held);
        if (joins) {
          gone += held;
          added += held;
        } else {
          flush();
          out.push(['same', held]);
        }
        held = '';
      }
      if (kind === 'removed')
        gone += text;
      else
        added += text;
    }
    flush();
    if (held) out.push(['same', held]);
    return out;
  }

  // ---- documents

  // `parts`: nodes. `facts`: short texts above it.
  function shown(facts, parts, isCut) {
    return make(
        'article', {class: 'document'}, make('div', {class: 'facts'}, ...facts.filter(Boolean)),
        make(
            'div', {
              class: 'text',
              dir: 'auto',
              tabindex: '0',
              role: 'textbox',
              'aria-readonly': 'true',
              'aria-multiline': 'true',
              'aria-label': 'Text of a document'
            },
            ...parts, isCut ? make('span', {class: 'cut', text: ' …'}) : null));
  }
  function facts(one, bytes) {
    return [
      one.language ? make('span', {class: 'badge', text: language(one.language)}) : null,
      make('span', {text: Format.bytes(bytes)}),
      one.begin ? make('span', {text: 'from byte ' + Format.count(one.begin)}) : null,
      one.origin ? make('span', {class: 'origin mono', text: name(one.origin)}) : null,
    ];
  }
  const size = (text) => new TextEncoder().encode(text).length;
  const isCut = (one) => one.begin + size(one.before) < one.bytes_before ||
      one.begin + size(one.after) < one.bytes_after;

  // An example that was kept or removed, or a document of a sample.
  function plain(one, text, bytes) {
    return shown(facts(one, bytes), nodes(text), (one.begin || 0) + size(text) < bytes);
  }
  // The first change is in view.
  function scrollToMark(made) {
    const text = made.querySelector('.text'), mark = made.querySelector('mark');
    if (mark) text.scrollTop = mark.offsetTop - 60;
  }
  // Two columns of a document that a step has changed.
  function changed(one) {
    const before = [], after = [];
    if (one.begin) {
      before.push(make('span', {class: 'cut', text: '… '}));
      after.push(make('span', {class: 'cut', text: '… '}));
    }
    for (const [kind, text] of difference(one.before, one.after, isCut(one))) {
      if (kind === 'same') {
        before.push(...nodes(text));
        after.push(...nodes(text));
      } else if (kind === 'removed' || kind === 'only-before') {
        before.push(
            kind === 'removed' ? make('mark', {class: 'gone'}, ...nodes(text)) :
                                 make('span', {}, ...nodes(text)));
      } else {
        after.push(
            kind === 'added' ? make('mark', {class: 'new'}, ...nodes(text)) :
                               make('span', {}, ...nodes(text)));
      }
    }
    const cut = isCut(one);
    const made = [
      shown(facts(one, one.bytes_before), before, cut),
      shown([make('span', {text: Format.bytes(one.bytes_after)})], after, cut)
    ];
    requestAnimationFrame(() => made.forEach(scrollToMark));
    return made;
  }
  // What was replaced by what in a changed document, with the text before it.
  function replacements(one) {
    const pieces = difference(one.before, one.after, isCut(one));
    const found = [];
    pieces.forEach(([kind, text], i) => {
      if (kind !== 'removed') return;
      const next = pieces[i + 1], last = pieces[i - 1];
      found.push({
        before: text,
        after: next && next[0] === 'added' ? next[1] : '',
        context: last && last[0] === 'same' ? last[1].slice(-40) : '',
        of: one
      });
    });
    return found;
  }
  return {changed, difference, language, name, nodes, plain, replacements};
})();
