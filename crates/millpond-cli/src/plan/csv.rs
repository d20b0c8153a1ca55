//! The planning CSV: `id,lower,upper,size[,alignment,offset,hint,gaps]`.
//!
//! The header says which columns there are, in any order. A gap is written `lower-upper`, or
//! `lower-upper@first:last` where the buffer still holds the bytes from `first` to before `last`; several are apart by
//! spaces. `hint` is read over: a hint for another planner's search.

use millpond_plan::{Buffer, Gap};

use super::error::InputError;

const COLUMNS: [&str; 8] = [
    "id",
    "lower",
    "upper",
    "size",
    "alignment",
    "offset",
    "hint",
    "gaps",
];

/// Whether a text begins like a planning CSV.
pub(super) fn is_header(line: &str) -> bool {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    ["lower", "upper", "size"]
        .iter()
        .all(|name| fields.contains(name))
}

/// The buffers, and their names.
pub(super) fn read(text: &str) -> Result<(Vec<Buffer>, Vec<String>), InputError> {
    let mut lines = text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty());
    let Some((_, header)) = lines.next() else {
        return Err(InputError::Empty);
    };
    let mut columns = [None; COLUMNS.len()];
    let names: Vec<&str> = header.split(',').map(str::trim).collect();
    for (at, name) in names.iter().enumerate() {
        let Some(column) = COLUMNS.iter().position(|c| c == name) else {
            return Err(csv(
                1,
                format!("column {name:?} is unknown; they are {}", COLUMNS.join(",")),
            ));
        };
        if columns[column].replace(at).is_some() {
            return Err(csv(1, format!("column {name:?} comes twice")));
        }
    }
    if let Some(missing) = (0..4).find(|&c| columns[c].is_none()) {
        return Err(csv(1, format!("column {:?} is missing", COLUMNS[missing])));
    }
    let (mut buffers, mut ids) = (Vec::new(), Vec::new());
    for (at, line) in lines {
        let number = at + 1;
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        if fields.len() != names.len() {
            return Err(csv(
                number,
                format!("{} fields, the header has {}", fields.len(), names.len()),
            ));
        }
        let field = |column: usize| columns[column].map_or("", |at| fields[at]);
        let bytes = |column: usize| -> Result<Option<u64>, InputError> {
            match field(column) {
                "" => Ok(None),
                text => whole(text, COLUMNS[column], number).map(Some),
            }
        };
        let required = |column: usize| -> Result<i64, InputError> {
            whole(field(column), COLUMNS[column], number)
        };
        let size = whole(field(3), "size", number)?;
        let mut buffer = Buffer::new(required(1)?, required(2)?, size);
        buffer.alignment = bytes(4)?.unwrap_or(1);
        buffer.offset = match field(5) {
            // What some writers put where there is none.
            "-1" => None,
            _ => bytes(5)?,
        };
        for gap in field(7).split_whitespace() {
            buffer.gaps.push(read_gap(gap).ok_or_else(|| {
                csv(
                    number,
                    format!("gap {gap:?}, expected lower-upper or lower-upper@first:last"),
                )
            })?);
        }
        buffers.push(buffer);
        ids.push(field(0).to_owned());
    }
    Ok((buffers, ids))
}

fn whole<N: std::str::FromStr>(text: &str, what: &str, line: usize) -> Result<N, InputError> {
    text.parse()
        .map_err(|_| csv(line, format!("{what} is {text:?}, expected a whole number")))
}

fn csv(line: usize, reason: String) -> InputError {
    InputError::Csv { line, reason }
}

fn read_gap(text: &str) -> Option<Gap> {
    let (times, held) = match text.split_once('@') {
        Some((times, held)) => (times, Some(held)),
        None => (text, None),
    };
    // A time may be negative, so that the first sign belongs to it.
    let minus = times.char_indices().skip(1).find(|c| c.1 == '-')?.0;
    let held = match held {
        Some(held) => {
            let (first, last) = held.split_once(':')?;
            Some((first.parse().ok()?, last.parse().ok()?))
        }
        None => None,
    };
    Some(Gap {
        lower: times[..minus].parse().ok()?,
        upper: times[minus + 1..].parse().ok()?,
        held,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_columns_are_read_in_any_order() {
        let text = "size,id,gaps,upper,lower,offset,alignment,hint\n8,a,2-3 4-6@0:4,9,-1,16,8,5\n\n4,b,,2,1,-1,,\n";
        let (buffers, ids) = read(text).unwrap();
        assert_eq!(ids, ["a", "b"]);
        assert_eq!(
            buffers[0],
            Buffer {
                offset: Some(16),
                gaps: vec![
                    Gap {
                        lower: 2,
                        upper: 3,
                        held: None
                    },
                    Gap {
                        lower: 4,
                        upper: 6,
                        held: Some((0, 4))
                    },
                ],
                ..Buffer::new(-1, 9, 8).aligned(8)
            }
        );
        assert_eq!(buffers[1], Buffer::new(1, 2, 4));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let error = |text: &str| read(text).unwrap_err().to_string();
        assert!(error("id,lower,upper,size\n1,2,3\n").starts_with("line 2: 3 fields"));
        assert!(error("id,lower,upper,size\n1,2,x,4\n").contains("upper is \"x\""));
        assert!(error("id,lower,upper,size\n1,2,3,-4\n").contains("size is \"-4\""));
        assert!(error("id,lower,size\n").contains("column \"upper\" is missing"));
        assert!(error("id,lower,upper,size,colour\n").contains("\"colour\" is unknown"));
        assert!(error("id,lower,upper,size,gaps\n1,0,9,4,3\n").contains("gap \"3\""));
        assert!(error("").contains("empty"));
    }
}
