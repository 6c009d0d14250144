//! Aligned columns of text.
//!
//! Written here because comfy-table pads line ends with spaces, shows empty columns, and counts colour codes as width
//! unless three more libraries help it.

use super::look::{Look, Paint, clean_line};

/// Text of a cell and its colour. The text is cleaned, because agents and providers may have written it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    text: String,
    paint: Paint,
}

/// Most characters of a cell; longer text is cut with an ellipsis.
const WIDEST: usize = 80;

impl Cell {
    pub fn new(text: impl AsRef<str>) -> Cell {
        Cell { text: clean_line(text.as_ref(), WIDEST), paint: Paint::Plain }
    }

    pub fn painted(text: impl AsRef<str>, paint: Paint) -> Cell {
        Cell { paint, ..Cell::new(text) }
    }

    /// Makes a cell that is never cut, such as an id.
    pub fn whole(text: impl AsRef<str>) -> Cell {
        Cell { text: clean_line(text.as_ref(), usize::MAX), paint: Paint::Plain }
    }
}

impl<T: AsRef<str>> From<T> for Cell {
    fn from(text: T) -> Cell {
        Cell::new(text)
    }
}

/// Column of a table: its heading, and whether its cells stand at its right.
#[derive(Clone, Debug)]
struct Column {
    name: String,
    is_right: bool,
}

/// Table with a header.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
    /// Width of each column as it was last rendered; `None` for a column that was left out.
    widths: Vec<Option<usize>>,
}

impl Table {
    /// Makes a table with these headings. A column whose heading begins with `>` has its cells at its right, as numbers do.
    pub fn new(headings: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let column = |heading: &str| match heading.strip_prefix('>') {
            Some(name) => Column { name: name.to_owned(), is_right: true },
            None => Column { name: heading.to_owned(), is_right: false },
        };
        let columns = headings.into_iter().map(|heading| column(heading.as_ref())).collect();
        Table { columns, rows: Vec::new(), widths: Vec::new() }
    }

    /// Appends a row. Missing cells at its end are empty.
    pub fn row(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Formats the table, each line after `indent` spaces. Columns that are empty in every row are left out.
    pub fn render(mut self, look: Look, indent: usize) -> String {
        self.render_rows(look, indent)
    }

    /// Formats the rows that came since the last call, and forgets them. Columns only get wider from call to call; the
    /// header comes again where a column does that was left out before.
    pub fn render_rows(&mut self, look: Look, indent: usize) -> String {
        let widest =
            |i: usize| self.rows.iter().filter_map(|row| row.get(i)).map(|c| c.text.chars().count()).max();
        let widths: Vec<Option<usize>> = (0..self.columns.len())
            .map(|i| {
                let known = self.widths.get(i).copied().flatten();
                let header = self.columns[i].name.chars().count();
                widest(i).filter(|width| *width > 0).map(|width| width.max(header)).max(known)
            })
            .collect();
        let is_shown = |widths: &[Option<usize>]| widths.iter().map(Option::is_some).collect::<Vec<_>>();
        let header = (is_shown(&widths) != is_shown(&self.widths)).then(|| {
            self.columns.iter().map(|column| Cell::painted(&column.name, Paint::Faint)).collect::<Vec<Cell>>()
        });
        let mut out = String::new();
        for row in header.iter().chain(&self.rows) {
            let mut line = " ".repeat(indent);
            let mut owed = 0;
            let shown = widths.iter().enumerate().filter_map(|(i, width)| Some((i, (*width)?)));
            for (nth, (i, width)) in shown.enumerate() {
                let Some(cell) = row.get(i) else { break };
                let pad = width - cell.text.chars().count();
                let before = if self.columns[i].is_right { pad } else { 0 };
                let gap = if nth == 0 { 0 } else { 2 };
                // Spaces are written only before a next cell, so that no line ends in them.
                if !cell.text.is_empty() {
                    line.push_str(&" ".repeat(owed + gap + before));
                    line.push_str(&look.paint(cell.paint, &cell.text));
                    owed = pad - before;
                } else {
                    owed += gap + width;
                }
            }
            out.push_str(&line);
            out.push('\n');
        }
        self.widths = widths;
        self.rows.clear();
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_no_line_ends_in_spaces() {
        let mut table = Table::new(["run", "void", ">calls", "note"]);
        table.row(vec!["a".into(), "".into(), "12".into(), "".into()]);
        table.row(vec!["longer".into(), "".into(), "".into(), "x".into()]);
        assert_eq!(
            table.render(Look::default(), 2),
            "  run     calls  note\n  a          12\n  longer         x\n"
        );
    }

    #[test]
    fn colour_does_not_count_as_width() {
        let mut table = Table::new(["a", "b"]);
        table.row(vec![Cell::painted("x", Paint::Bad), "y".into()]);
        let shown = table.render(Look { color: true, json: false }, 0);
        assert!(shown.ends_with("\x1b[31mx\x1b[0m  y\n"), "{shown:?}");
    }

    #[test]
    fn a_table_goes_on_in_its_columns_and_names_one_that_is_new() {
        let mut table = Table::new([">a", "b", "c"]);
        let mut print = |rows: &[[&'static str; 3]]| {
            rows.iter().for_each(|row| table.row(row.map(Cell::from).to_vec()));
            table.render_rows(Look::default(), 0)
        };
        assert_eq!(print(&[["100", "", "x"]]), "  a  c\n100  x\n");
        assert_eq!(print(&[["1", "", "y"]]), "  1  y\n");
        assert_eq!(print(&[["1", "new", ""]]), "  a  b    c\n  1  new\n");
    }

    #[test]
    fn a_cell_is_one_line() {
        let mut table = Table::new(["a"]);
        table.row(vec!["one\ntwo\x1b[0m".into()]);
        assert_eq!(table.render(Look::default(), 0).lines().count(), 2);
    }
}
