// Answers the questions of bench/peers.exs and bench/first.exs with Rust's crates: safetensors, candle-core, and burn's
// pytorch-reader. The first line of the output has their names. Each line of standard input is a peer, a question and a
// path; the answer is the time in milliseconds and the memory that it took at most, in KiB, or "none" if the peer cannot
// answer it.
use candle_core::{pickle::PthTensors, Device, Tensor};
use pytorch_reader::PytorchReader;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use std::any::Any;
use std::collections::HashMap;
use std::error::Error;
use std::io::{BufRead, Write};
use std::time::Instant;

type Result<T> = std::result::Result<T, Box<dyn Error>>;
/// What a job has made. It is freed after the time was taken.
type Made = Box<dyn Any>;

/// What a save writes.
#[derive(Default)]
struct Kept {
    owned: Vec<(String, Dtype, Vec<usize>, Vec<u8>)>,
    tensors: HashMap<String, Tensor>,
}

fn map(path: &str) -> Result<memmap2::Mmap> {
    Ok(unsafe { memmap2::Mmap::map(&std::fs::File::open(path)?)? })
}

fn middle<S: Ord + Clone>(mut names: Vec<S>) -> S {
    names.sort();
    names[names.len() / 2].clone()
}

// ---- safetensors ----

fn entries(path: &str) -> Result<Made> {
    let file = map(path)?;
    let tensors = SafeTensors::deserialize(&file)?;
    let list: Vec<(String, Dtype, Vec<usize>)> = tensors
        .tensors()
        .into_iter()
        .map(|(name, view)| (name, view.dtype(), view.shape().to_vec()))
        .collect();
    Ok(Box::new(list))
}

fn one(path: &str) -> Result<Made> {
    let file = map(path)?;
    let tensors = SafeTensors::deserialize(&file)?;
    Ok(Box::new(
        tensors.tensor(middle(tensors.names()))?.data().to_vec(),
    ))
}

fn view_all(path: &str) -> Result<Made> {
    let file = map(path)?;
    let count = SafeTensors::deserialize(&file)?.tensors().len();
    Ok(Box::new((file, count)))
}

/// Reads a byte of each page.
fn touch_all(path: &str) -> Result<Made> {
    let file = map(path)?;
    let tensors = SafeTensors::deserialize(&file)?.tensors();
    let sum = |view: &TensorView| {
        view.data()
            .iter()
            .step_by(4096)
            .map(|byte| *byte as usize)
            .sum::<usize>()
    };
    let total: usize = tensors.iter().map(|(_, view)| sum(view)).sum();
    Ok(Box::new((file, total)))
}

fn read_all(path: &str) -> Result<Made> {
    let file = std::fs::read(path)?;
    let count = SafeTensors::deserialize(&file)?.tensors().len();
    Ok(Box::new((file, count)))
}

fn keep(path: &str) -> Result<Kept> {
    let file = map(path)?;
    let tensors = SafeTensors::deserialize(&file)?;
    let owned = tensors.tensors().into_iter();
    Ok(Kept {
        owned: owned
            .map(|(name, view)| {
                (
                    name,
                    view.dtype(),
                    view.shape().to_vec(),
                    view.data().to_vec(),
                )
            })
            .collect(),
        tensors: HashMap::new(),
    })
}

fn save(kept: &Kept, path: &str) -> Result<Made> {
    let mut views = Vec::with_capacity(kept.owned.len());
    for (name, dtype, shape, data) in &kept.owned {
        views.push((name.as_str(), TensorView::new(*dtype, shape.clone(), data)?));
    }
    safetensors::serialize_to_file(views, None, std::path::Path::new(path))?;
    Ok(Box::new(()))
}

// ---- candle ----

fn candle_one(path: &str) -> Result<Made> {
    let file = PthTensors::new(path, None)?;
    let name = middle(file.tensor_infos().keys().cloned().collect());
    Ok(Box::new(file.get(&name)?.ok_or("no such tensor")?))
}

fn candle_open(path: &str) -> Result<Made> {
    Ok(Box::new(PthTensors::new(path, None)?))
}

fn candle_load_safetensors(path: &str) -> Result<Made> {
    Ok(Box::new(candle_core::safetensors::load(
        path,
        &Device::Cpu,
    )?))
}

fn candle_keep(path: &str) -> Result<Kept> {
    Ok(Kept {
        owned: Vec::new(),
        tensors: candle_core::safetensors::load(path, &Device::Cpu)?,
    })
}

fn candle_save(kept: &Kept, path: &str) -> Result<Made> {
    candle_core::safetensors::save(&kept.tensors, path)?;
    Ok(Box::new(()))
}

// ---- burn ----

fn burn_one(path: &str) -> Result<Made> {
    let file = PytorchReader::new(path)?;
    Ok(Box::new(
        file.get(&middle(file.keys()))
            .ok_or("no such tensor")?
            .read()?,
    ))
}

fn burn_open(path: &str) -> Result<Made> {
    Ok(Box::new(PytorchReader::new(path)?))
}

fn burn_load(path: &str) -> Result<Made> {
    let file = PytorchReader::new(path)?;
    let tensors = file
        .tensors()
        .values()
        .map(|tensor| tensor.read())
        .collect::<std::io::Result<Vec<_>>>()?;
    Ok(Box::new(tensors))
}

// ---- Answers ----

fn memory_kib(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status
        .lines()
        .find(|line| line.starts_with(field))
        .unwrap_or_default();
    line.split_whitespace()
        .nth(1)
        .and_then(|kib| kib.parse().ok())
        .unwrap_or(0)
}

fn answer(peer: &str, question: &str, path: &str, kept: &Kept) -> Option<Result<Made>> {
    Some(match (peer, question) {
        ("crate", "st_open") => entries(path),
        ("crate", "st_one") => one(path),
        ("crate", "st_map") => view_all(path),
        ("crate", "st_touch") => touch_all(path),
        ("crate", "st_load") => read_all(path),
        ("crate", "st_save") => save(kept, path),
        ("candle", "pt_open") => candle_open(path),
        ("candle", "pt_one") => candle_one(path),
        ("candle", "st_load") => candle_load_safetensors(path),
        ("candle", "st_save") => candle_save(kept, path),
        ("burn", "pt_open" | "legacy_open") => burn_open(path),
        ("burn", "pt_one" | "legacy_one") => burn_one(path),
        ("burn", "pt_load" | "legacy_load") => burn_load(path),
        _ => return None,
    })
}

fn main() -> Result<()> {
    let mut out = std::io::stdout();
    let mut kept: HashMap<String, Kept> = HashMap::new();
    writeln!(out, "crate candle burn")?;
    out.flush()?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let [peer, question, path] = words[..] else {
            return Err("expected a peer, a question and a path".into());
        };
        if question == "keep" {
            kept.insert(
                peer.into(),
                if peer == "candle" {
                    candle_keep(path)?
                } else {
                    keep(path)?
                },
            );
            writeln!(out, "kept")?;
        } else {
            let none = Kept::default();
            let _ = std::fs::write("/proc/self/clear_refs", "5"); // the peak is now what is in use
            let before = memory_kib("VmRSS:");
            let started = Instant::now();
            match answer(peer, question, path, kept.get(peer).unwrap_or(&none)) {
                Some(Ok(_made)) => {
                    let ms = started.elapsed().as_secs_f64() * 1000.0;
                    writeln!(
                        out,
                        "{} {}",
                        ms,
                        memory_kib("VmHWM:").saturating_sub(before)
                    )?
                }
                Some(Err(error)) => {
                    eprintln!("{peer}: {question} of {path}: {error}");
                    writeln!(out, "none")?
                }
                None => writeln!(out, "none")?,
            }
        }
        out.flush()?;
    }
    Ok(())
}
