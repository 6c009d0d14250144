//! The costliest parts of an ordinary step, each in one call: finding its record, and writing its result.
//!
//! Equivalent to `codec.py` for the values that most steps have. All other values are passed to it.

use pyo3::{
    exceptions::PyValueError,
    prelude::*,
    sync::PyOnceLock,
    types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyString, PyTuple},
};

use crate::recorded::{Recorded, base_of};

/// Number of characters shown of each argument; `WHOLE`: of all arguments together.
const EACH: usize = 80;
const WHOLE: usize = 320;

/// Key, base and value of a step, as `enter` returns them.
type Entered<'py> = (Option<String>, Option<String>, Option<Bound<'py, PyAny>>);

/// Looks up a step. Returns (None, None, value) if it is recorded, otherwise (key, base, None). The key is set if the
/// call `begins` the step and needs no closer check; the key is then reserved. Without a key the caller has to call
/// `take`.
#[pyfunction]
pub fn enter<'py>(
    py: Python<'py>,
    recorded: &Recorded,
    name: &str,
    args: &Bound<'py, PyTuple>,
    kwargs: &Bound<'py, PyDict>,
    begins: bool,
) -> PyResult<Entered<'py>> {
    let base = base_of(name, identity(py, args, kwargs)?.to_str()?);
    if let Some(value) = recorded.replay(py, &base)? {
        return Ok((None, None, Some(read(py, &value)?)));
    }
    let key = if begins { recorded.begin(py, &base)? } else { None };
    Ok((key, Some(base), None))
}

/// Encodes a step's result for its journal entry, with its arguments shortened for people. Errors: `NotSerializable`.
#[pyfunction]
pub fn written<'py>(
    py: Python<'py>,
    args: &Bound<'py, PyTuple>,
    kwargs: &Bound<'py, PyDict>,
    result: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyBytes>> {
    let mut whole = Vec::with_capacity(64);
    whole.extend_from_slice(b"{\"args\":");
    if !(is_plain(args, kwargs) && shown(&mut whole, args)?) {
        whole.truncate(8);
        let shown = codec(py, &SHOWN, "shown")?.call1((args, kwargs))?;
        let text = codec(py, &COMPACT, "compact")?.call1((shown,))?;
        // A lone surrogate in an argument must not lose the result.
        let bytes = text.call_method1("encode", ("utf-8", "replace"))?;
        whole.extend_from_slice(bytes.cast::<PyBytes>()?.as_bytes());
    }
    whole.extend_from_slice(b",\"value\":");
    if let Some(text) = result.cast_exact::<PyString>().ok().and_then(|s| s.to_str().ok()) {
        quoted(&mut whole, text)?;
    } else if result.is_none() {
        whole.extend_from_slice(b"null");
    } else if let Ok(bool) = result.cast_exact::<PyBool>() {
        whole.extend_from_slice(if bool.is_true() { b"true" } else { b"false" });
    } else if let Some(number) = result.cast_exact::<PyInt>().ok().and_then(|n| n.extract::<i64>().ok()) {
        whole.extend_from_slice(number.to_string().as_bytes());
    } else {
        let text = codec(py, &ENCODE, "encode")?.call1((result,))?;
        whole.extend_from_slice(text.cast::<PyString>()?.to_str()?.as_bytes());
    }
    whole.push(b'}');
    Ok(PyBytes::new(py, &whole))
}

static IDENTITY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static SHOWN: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static COMPACT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static ENCODE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static DECODE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

fn codec<'py>(
    py: Python<'py>,
    once: &'static PyOnceLock<Py<PyAny>>,
    name: &str,
) -> PyResult<&'py Bound<'py, PyAny>> {
    once.import(py, "outlast.codec", name)
}

/// Returns whether all arguments are exactly of classes whose `repr` states the whole value.
fn is_plain(args: &Bound<'_, PyTuple>, kwargs: &Bound<'_, PyDict>) -> bool {
    kwargs.is_empty()
        && args.iter_borrowed().all(|value| {
            value.is_exact_instance_of::<PyString>()
                || value.is_exact_instance_of::<PyInt>()
                || value.is_none()
                || value.is_exact_instance_of::<PyBool>()
                || value.is_exact_instance_of::<PyFloat>()
        })
}

/// Returns a text that is equal for equal arguments.
fn identity<'py>(
    py: Python<'py>,
    args: &Bound<'py, PyTuple>,
    kwargs: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyString>> {
    if is_plain(args, kwargs) {
        return args.repr();
    }
    Ok(codec(py, &IDENTITY, "identity")?.call1((args, kwargs))?.cast_into()?)
}

/// Appends the start of each argument as a list of texts. Returns false if one cannot be shown here.
fn shown(whole: &mut Vec<u8>, args: &Bound<'_, PyTuple>) -> PyResult<bool> {
    whole.push(b'[');
    let mut left = WHOLE;
    for (i, value) in args.iter_borrowed().enumerate() {
        if i > 0 {
            whole.push(b',');
        }
        let text = match value.cast_exact::<PyString>() {
            // Cut before printing: a large text need not be printed whole.
            Ok(text) => match text.to_str().map(|s| s.char_indices().nth(EACH).map(|(end, _)| &s[..end])) {
                Ok(Some(start)) => PyString::new(value.py(), start).repr()?,
                Ok(None) => text.repr()?,
                Err(_) => return Ok(false),
            },
            Err(_) => value.repr()?,
        };
        let Ok(text) = text.to_str() else { return Ok(false) };
        let len = text.chars().count();
        let Some(rest) = left.checked_sub(len.min(EACH)) else {
            quoted(whole, "…")?;
            break;
        };
        left = rest;
        match text.char_indices().nth(EACH - 1).filter(|_| len > EACH) {
            Some((end, _)) => quoted(whole, &format!("{}…", &text[..end]))?,
            None => quoted(whole, text)?,
        }
    }
    whole.push(b']');
    Ok(true)
}

/// Appends a text as JSON, with the same escapes as Python's encoder.
fn quoted(whole: &mut Vec<u8>, text: &str) -> PyResult<()> {
    whole.reserve(text.len() + 2);
    // Does not stop early, so that many bytes are compared at once.
    let is_escaped = text.bytes().fold(false, |any, b| any | (b < 0x20) | (b == b'"') | (b == b'\\'));
    if is_escaped {
        return serde_json::to_writer(whole, text).map_err(|e| PyValueError::new_err(e.to_string()));
    }
    whole.push(b'"');
    whole.extend_from_slice(text.as_bytes());
    whole.push(b'"');
    Ok(())
}

/// Decodes the value from what `written` encoded.
fn read<'py>(py: Python<'py>, whole: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    let value = std::str::from_utf8(whole).ok().and_then(value_of).unwrap_or_default();
    if value.starts_with('"')
        && let Ok(text) = serde_json::from_str::<String>(value)
    {
        return Ok(PyString::new(py, &text).into_any());
    }
    match value {
        "null" => Ok(py.None().into_bound(py)),
        "true" | "false" => Ok(PyBool::new(py, value == "true").to_owned().into_any()),
        _ => match value.parse::<i64>() {
            Ok(number) => Ok(number.into_pyobject(py)?.into_any()),
            Err(_) => codec(py, &DECODE, "decode")?.call1((PyBytes::new(py, whole),))?.get_item("value"),
        },
    }
}

/// Returns the JSON after the arguments that `written` encoded, None if its start is not certain.
fn value_of(whole: &str) -> Option<&str> {
    let mut rest = whole.strip_prefix("{\"args\":[")?;
    while let Some(text) = rest.strip_prefix('"') {
        let mut escaped = false;
        let end = text.bytes().position(|b| {
            let ends = b == b'"' && !escaped;
            escaped = b == b'\\' && !escaped;
            ends
        })?;
        rest = &text[end + 1..];
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
    rest.strip_prefix("],\"value\":")?.strip_suffix('}')
}
