'use strict';

// Building of elements. Text is always set as text: nothing here parses HTML.
const Elements = (() => {
  const kSvg = 'http://www.w3.org/2000/svg';

  function fill(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) {
      if (value === null || value === undefined || value === false) continue;
      if (name === 'text')
        element.textContent = value;
      else if (name.startsWith('on'))
        element.addEventListener(name.slice(2), value);
      else
        element.setAttribute(name, value === true ? '' : value);
    }
    element.append(...children.filter((child) => child !== null && child !== undefined));
    return element;
  }
  function make(tag, attributes = {}, ...children) {
    return fill(document.createElement(tag), attributes, children);
  }
  function svg(tag, attributes = {}, ...children) {
    return fill(document.createElementNS(kSvg, tag), attributes, children);
  }
  function byId(id) {
    return document.getElementById(id);
  }

  // A table. columns: [{title, number, cell(row) -> text or element}].
  function table(columns, rows) {
    const head = make(
        'tr', {},
        ...columns.map(
            (column) => make(
                'th', {scope: 'col', text: column.title, class: column.number ? 'number' : null})));
    const body = rows.map((row) => make('tr', {}, ...columns.map((column) => {
                            const content = column.cell(row);
                            const cell =
                                make('td', {class: column.number ? 'number' : column.class});
                            if (content instanceof Node)
                              cell.append(content);
                            else
                              cell.textContent = content;
                            return cell;
                          })));
    return make('table', {}, make('thead', {}, head), make('tbody', {}, ...body));
  }
  function swatch(colour) {
    const box = make('span', {class: 'swatch'});
    box.style.background = colour;
    return box;
  }
  function named(colour, text) {
    return make('span', {}, swatch(colour), text);
  }
  function card(title, ...children) {
    return make('div', {class: 'card'}, title ? make('h3', {text: title}) : null, ...children);
  }
  function wideCard(title, ...children) {
    const made = card(title, ...children);
    made.classList.add('wide');
    return made;
  }
  return {byId, card, make, named, svg, swatch, table, wideCard};
})();

// One box beside the pointer for all panels.
const Tooltip = (() => {
  let box = null;
  function show(x, y, content) {
    box = box || Elements.byId('tooltip');
    if (typeof content === 'string')
      box.textContent = content;
    else
      box.replaceChildren(content);
    box.hidden = false;
    const width = box.offsetWidth, height = box.offsetHeight;
    box.style.left = Math.max(4, x + 14 + width > innerWidth ? x - width - 14 : x + 14) + 'px';
    box.style.top = Math.max(4, Math.min(y + 14, innerHeight - height - 4)) + 'px';
  }
  function hide() {
    if (box) box.hidden = true;
  }
  // The tooltip of an element: the text is computed when the pointer arrives.
  function attach(element, text) {
    element.addEventListener('pointermove', (event) => show(event.clientX, event.clientY, text()));
    element.addEventListener('pointerleave', hide);
  }
  return {attach, hide, show};
})();
