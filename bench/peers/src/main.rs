// Answers the questions of bench/peers.exs with Rust's crate safetensors. Each line of standard input is a
// peer, a question and a path; the answer is the time in milliseconds and the memory that it took at most, in KiB, or
// "none" if the peer cannot answer it.
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use std::error::Error;
use std::io::{BufRead, Write};
use std::time::Instant;

type Result<T> = std::result::Result<T, Box<dyn Error>>;
type Owned = Vec<(String, Dtype, Vec<usize>, Vec<u8>)>;

fn map(path: &str) -> Result<memmap2::Mmap> {
    Ok(unsafe { memmap2::Mmap::map(&std::fs::File::open(path)?)? })
}

fn middle<'a>(mut names: Vec<&'a str>) -> &'a str {
    names.sort();
    names[names.len() / 2]
}

// ---- Questions ----

fn entries(path: &str) -> Result<usize> {
    let file = map(path)?;
    let tensors = SafeTensors::deserialize(&file)?;
    let list: Vec<_> = tensors
        .tensors()
        .into_iter()
        .map(|(name, view)| (name, view.dtype(), view.shape().to_vec()))
        .collect();
    Ok(list.len())
}

fn one(path: &str) -> Result<usize> {
    let file = map(path)?;
    let tensors = SafeTensors::deserialize(&file)?;
    Ok(tensors.tensor(middle(tensors.names()))?.data().to_vec().len())
}

fn view_all(path: &str) -> Result<usize> {
    let file = map(path)?;
    Ok(SafeTensors::deserialize(&file)?.tensors().len())
}

fn read_all(path: &str) -> Result<usize> {
    let file = std::fs::read(path)?;
    Ok(SafeTensors::deserialize(&file)?.tensors().len())
}

fn keep(path: &str) -> Result<Owned> {
    let file = map(path)?;
    let tensors = SafeTensors::deserialize(&file)?;
    let owned = tensors.tensors().into_iter();
    Ok(owned
        .map(|(name, view)| (name, view.dtype(), view.shape().to_vec(), view.data().to_vec()))
        .collect())
}

fn save(owned: &Owned, path: &str) -> Result<usize> {
    let mut views = Vec::with_capacity(owned.len());
    for (name, dtype, shape, data) in owned {
        views.push((name.as_str(), TensorView::new(*dtype, shape.clone(), data)?));
    }
    safetensors::serialize_to_file(views, None, std::path::Path::new(path))?;
    Ok(owned.len())
}

// ---- Answers ----

fn memory_kib(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).unwrap_or(0)
}

fn answer(question: &str, path: &str, kept: &Owned) -> Option<Result<usize>> {
    Some(match question {
        "st_open" => entries(path),
        "st_one" => one(path),
        "st_map" => view_all(path),
        "st_load" => read_all(path),
        "st_save" => save(kept, path),
        _ => return None,
    })
}

fn main() -> Result<()> {
    let mut out = std::io::stdout();
    let mut kept: Owned = Vec::new();
    writeln!(out, "crate")?;
    out.flush()?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_peer, question, path] = words[..] else { return Err("expected a peer, a question and a path".into()) };
        if question == "keep" {
            kept = keep(path)?;
            writeln!(out, "kept")?;
        } else {
            let _ = std::fs::write("/proc/self/clear_refs", "5"); // the peak is now what is in use
            let before = memory_kib("VmRSS:");
            let started = Instant::now();
            match answer(question, path, &kept) {
                Some(result) => {
                    result?;
                    let ms = started.elapsed().as_secs_f64() * 1000.0;
                    writeln!(out, "{} {}", ms, memory_kib("VmHWM:").saturating_sub(before))?
                }
                None => writeln!(out, "none")?,
            }
        }
        out.flush()?;
    }
    Ok(())
}
