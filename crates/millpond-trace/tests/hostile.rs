//! Damaged and hostile files: an error or a valid trace, never a panic, never more than the
//! limits allow.

mod support;

use millpond_trace::{ErrorKind, Limits};
use proptest::prelude::*;
use support::{RECORDINGS, content, entry, gzip, pickle, read, read_within, refusal, snapshot};

/// Limits that a hostile file reaches quickly.
fn tight() -> Limits {
    Limits {
        decompressed_bytes: 1 << 20,
        expansion_floor_bytes: 1 << 16,
        line_bytes: 1 << 10,
        pickle_nodes: 100_000,
        pickle_memo: 10_000,
        pickle_depth: 100,
        pickle_value_bytes: 1 << 16,
        steps: 20_000,
        streams: 64,
        ..Limits::default()
    }
}

/// Reads by the default limits and by tight ones; returns are checked by `read_within`.
fn survive(bytes: &[u8]) {
    for limits in [tight(), Limits::default()] {
        if let Err(error) = read_within(bytes, &limits) {
            let line = error.to_string();
            assert!(!line.contains('\n') && line.len() < 400, "{line}");
        }
    }
}

fn with_proto(body: &[u8]) -> Vec<u8> {
    [b"\x80\x04", body].concat()
}

#[test]
fn code_is_refused_by_name() {
    for (body, expected) in [
        (
            &b"cos\nsystem\n(S'x'\ntR."[..],
            "byte 2: the pickle asks for code by GLOBAL `os.system`",
        ),
        (
            b"\x8c\x02os\x8c\x06system\x93.",
            "byte 14: the pickle asks for code by STACK_GLOBAL `os.system`",
        ),
        (b"(ios\nsystem\n.", "by INST `os.system`"),
        (b"N)R.", "by REDUCE; "),
        (b"NNb.", "by BUILD; "),
        (b"(No.", "by OBJ; "),
        (b"N)\x81.", "by NEWOBJ; "),
        (b"N)}\x92.", "by NEWOBJ_EX; "),
        (b"Pid\n.", "by PERSID; "),
        (b"NQ.", "by BINPERSID; "),
        (b"\x82\x01.", "by EXT1; "),
        (b"\x83\x01\x00.", "by EXT2; "),
        (b"\x84\x01\x00\x00\x00.", "by EXT4; "),
        (b"\x97.", "by NEXT_BUFFER; "),
        (b"N\x98.", "by READONLY_BUFFER; "),
    ] {
        let line = refusal(&with_proto(body));
        assert!(line.contains(expected), "{line}");
        assert!(line.contains("only data is read"), "{line}");
    }
}

#[test]
fn pickles_that_break_the_machine_are_errors() {
    for (body, expected) in [
        (&b"."[..], "the stack is too short"),
        (b"(.", "the stack is too short"),
        (b"0.", "the stack is too short"),
        (b"1.", "the stack is too short"),
        (b"2.", "the stack is too short"),
        (b"\x94.", "the stack is too short"),
        (b"K\x01\x86.", "the stack is too short"),
        (b"N(\x85.", "the stack is too short"),
        (b"a.", "the stack is too short"),
        (b"(Na.", "the stack is too short"),
        (b"(e.", "the stack is too short"),
        (b"NNa.", "the container to fill is None, expected a list"),
        (
            b"](NNu.",
            "the container to fill is a list, expected a dict",
        ),
        (b"}(Nu.", "a key without a value"),
        (b"(Nd.", "a key without a value"),
        (b"h\x05.", "the memo index is 5"),
        (b"j\xff\xff\xff\xff.", "the memo index is 4294967295"),
        (b"\xff.", "the opcode is 0xff"),
        (b"I5\n.", "the opcode is 0x49"),
        (b"N", "the next opcode takes 1 bytes and 0 are left"),
        (b"J\x01", "BININT takes 4 bytes and 1 are left"),
        (
            b"\x95\xff\xff\xff\xff\xff\xff\xff\x7fN.",
            "a frame takes 9223372036854775807 bytes and 2",
        ),
        (b"\x80\x06N.", "the pickle protocol is 6, expected 2 to 5"),
    ] {
        let line = refusal(&with_proto(body));
        assert!(line.contains(expected), "{body:?}: {line}");
    }
    assert!(refusal(b"\x80\x00N.").contains("the pickle protocol is 0"));
}

#[test]
fn every_data_opcode_is_understood() {
    // A dict of every kind of value, and `segments`; what is not known is left aside.
    let body = [
        &b"}("[..],
        b"K\x00N",
        b"K\x01\x88",
        b"K\x02\x89",
        b"K\x03J\xff\xff\xff\xff",
        b"K\x04M\x01\x02",
        b"K\x05\x8a\x01\xff",
        b"K\x06\x8b\x02\x00\x00\x00\x01\x02",
        b"K\x07G\x3f\xf0\0\0\0\0\0\0",
        b"K\x08U\x01s",
        b"K\x09T\x01\0\0\0s",
        b"K\x0aX\x01\0\0\0s",
        b"K\x0b\x8d\x01\0\0\0\0\0\0\0s",
        b"K\x0cC\x01b",
        b"K\x0dB\x01\0\0\0b",
        b"K\x0e\x8e\x01\0\0\0\0\0\0\0b",
        b"K\x0f\x96\x01\0\0\0\0\0\0\0b",
        b"K\x10(NNl",
        b"K\x11)",
        b"K\x12(NNt",
        b"K\x13N\x85",
        b"K\x14NN\x86",
        b"K\x15NNN\x87",
        b"K\x16(NNd",
        b"K\x17\x8f(N\x90",
        b"K\x18(N\x91",
        b"K\x19]Na",
        b"K\x1a}NNs",
        b"K\x1bN20",
        b"K\x1c(NN1N",
        b"K\x1dNq\x00",
        b"K\x1eh\x00",
        b"K\x1fNr\x00\x01\x00\x00",
        b"K\x20j\x00\x01\x00\x00",
        b"K\x21N\x94",
        b"\x8c\x08segments]u.",
    ]
    .concat();
    assert_eq!(read(&with_proto(&body)).unwrap().steps, []);
}

#[test]
fn claimed_lengths_cost_nothing() {
    for body in [
        &b"X\xff\xff\xff\xffabc"[..],
        b"\x8d\xff\xff\xff\xff\xff\xff\xff\xffabc",
        b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7fabc",
        b"\x96\x00\x00\x00\x00\x01\x00\x00\x00abc",
        b"\x8b\xff\xff\xff\xff",
        b"B\xff\xff\xff\x03abc",
        b"\x8c\xffabc",
    ] {
        let error = read(&with_proto(body)).unwrap_err();
        let early = matches!(
            error.kind,
            ErrorKind::Limit { .. } | ErrorKind::Truncated { .. }
        );
        assert!(early, "{error}");
    }
    // A memo index is no length either.
    let far = with_proto(b"Nr\xff\xff\xff\xffr\xfe\xff\xff\x7f.");
    assert!(refusal(&far).contains("the snapshot is None"));
}

#[test]
fn deep_nesting_ends_at_the_depth_limit_or_is_harmless() {
    let marks = with_proto(&[&vec![b'('; 5000][..], b"."].concat());
    assert!(refusal(&marks).contains("byte 1002: more than 1000 open containers"));
    // Nested without marks: a million lists, each the only item of the one before.
    let deep = [vec![b']'; 1_000_000], vec![b'a'; 999_999], b".".to_vec()].concat();
    assert!(refusal(&with_proto(&deep)).contains("a segment is a list"));
    // A list that contains itself.
    let cycle = with_proto(b"]q\x00h\x00a.");
    assert!(refusal(&cycle).contains("a segment is a list, expected a dict"));
}

/// Each level holds the one below twice: 2^60 paths to one object.
#[test]
fn a_memo_bomb_stays_as_small_as_its_file() {
    let mut body = b"]\x94".to_vec();
    for level in 0..60_u8 {
        body.extend([b']', 0x94, b'(', b'h', level, b'h', level, b'e', b'0']);
    }
    body.extend(b"h\x3c.");
    let limits = Limits {
        pickle_nodes: 400,
        ..Limits::default()
    };
    let error = read_within(&with_proto(&body), &limits).unwrap_err();
    assert!(error.to_string().contains("a segment is a list"), "{error}");
}

/// One entry that stands in the history thousands of times is read each time, up to the limit.
#[test]
fn shared_entries_are_bounded_by_the_step_limit() {
    let mut body = pickle(4, &entry("free_requested", 64, 8, 1))[11..].to_vec();
    body.pop();
    let history = b"h\x00".repeat(30_000);
    let whole = [
        &b"}(\x8c\x0ddevice_traces]]("[..],
        &body,
        b"\x94",
        &history,
        b"ea\x8c\x08segments]u.",
    ];
    let whole = with_proto(&whole.concat());
    let line = read_within(&whole, &tight()).unwrap_err().to_string();
    assert!(line.contains("more than 20000 history entries"), "{line}");
    // Only one block was live to be freed.
    assert_eq!(read(&whole).unwrap().steps.len(), 2);
}

#[test]
fn pickle_limits_end_in_an_error() {
    let wide = Limits::default();
    for (body, limits, expected) in [
        (
            &b"]]]]."[..],
            Limits {
                pickle_nodes: 261,
                ..wide.clone()
            },
            "byte 4: more than 261 values",
        ),
        (
            b"N\x94\x94\x94.",
            Limits {
                pickle_memo: 2,
                ..wide.clone()
            },
            "byte 5: more than 2 memo",
        ),
        (
            b"NrA\0\0\0rB\0\0\0.",
            Limits {
                pickle_memo: 1,
                ..wide.clone()
            },
            "more than 1 memo",
        ),
        (
            b"\x8c\x05hello.",
            Limits {
                pickle_value_bytes: 4,
                ..wide
            },
            "more than 4 bytes in one",
        ),
    ] {
        let line = read_within(&with_proto(body), &limits)
            .unwrap_err()
            .to_string();
        assert!(line.contains(expected), "{line}");
    }
}

#[test]
fn a_dict_of_too_many_keys_is_no_record() {
    let pairs = b"K\x01N".repeat(100);
    let whole = with_proto(&[&b"](}("[..], &pairs, b"ue."].concat());
    assert!(refusal(&whole).contains("more than 64 keys in one record"));
}

/// A file cut anywhere is an error, or for text a shorter trace; checked at many places of the
/// real recordings.
#[test]
fn truncated_recordings_never_panic() {
    for name in RECORDINGS {
        let whole = content(name);
        let ends = (0..200).chain((200..whole.len()).step_by(whole.len() / 20));
        for end in ends {
            let result = read(&whole[..end]);
            assert!(
                result.is_err() || !name.contains("pickle"),
                "{name} cut at {end}"
            );
        }
        let zipped = gzip(&whole[..whole.len().min(100_000)]);
        for end in (0..zipped.len()).step_by(zipped.len() / 20) {
            assert!(read(&zipped[..end]).is_err(), "{name} zipped, cut at {end}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        survive(&bytes);
    }

    #[test]
    fn random_opcodes_never_panic(
        body in proptest::collection::vec(
            prop_oneof![
                4 => proptest::sample::select(&b"(.012NJKMGTUXBC]lae)t}dsuqrhj\x80\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\x90\x91\x94\x95\x96"[..]),
                1 => any::<u8>(),
            ],
            0..300,
        )
    ) {
        survive(&with_proto(&body));
    }

    #[test]
    fn random_rows_give_valid_traces(
        rows in proptest::collection::vec((0..6_usize, 0..4_u8, 0..3_u8, 0..3_u8, 0..30_u8), 0..60)
    ) {
        let mut ordered = "op,block,size,stream,event,host_us,device_us\n".to_owned();
        let mut events = "action,addr,size,stream,time_us\n".to_owned();
        let mut log = String::from("Thread,Time,Action,Pointer,Size,Stream\n");
        for &(op, block, stream, event, time) in &rows {
            let name = ["alloc", "free", "use", "use_end", "record", "wait"][op];
            ordered += &format!("{name},{block},8,{stream},{event},{time}.5,{time}\n");
            let name = ["alloc", "free_requested", "free_completed", "segment_alloc", "oom", "snapshot"][op];
            events += &format!("{name},{block},8,{stream},{time}\n");
            let name = ["allocate", "free", "allocate failure"][op % 3];
            log += &format!("1,10:00:{time:02}.5,{name},{block},8,{stream}\n");
        }
        for text in [ordered, events, log] {
            survive(text.as_bytes());
        }
    }

    #[test]
    fn random_histories_give_valid_traces(
        rows in proptest::collection::vec((0..4_usize, 1..5_i64, 0..30_i64), 0..60)
    ) {
        let actions = ["alloc", "free_requested", "free_completed", "segment_alloc"];
        let history = rows.iter().map(|&(a, addr, time)| entry(actions[a], addr, addr, time));
        survive(&pickle(4, &snapshot(vec![], vec![history.collect()])));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn mutated_recordings_never_panic(
        which in 0..RECORDINGS.len(),
        window in any::<prop::sample::Index>(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        zipped in any::<bool>(),
    ) {
        let whole = content(RECORDINGS[which]);
        // Pickles are kept whole, texts keep their header and some rows.
        let pickled = whole[0] == 0x80;
        let mut bytes = if pickled { whole } else {
            let header = whole.iter().position(|&b| b == b'\n').unwrap() + 1;
            let from = header + window.index(whole.len() - header);
            [&whole[..header], &whole[from..whole.len().min(from + 20_000)]].concat()
        };
        if zipped && !pickled {
            bytes = gzip(&bytes);
        }
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        survive(&bytes);
    }
}
