use millpond_plan::*;
use std::io::Read;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let mut s = String::new();
    std::io::stdin().read_to_string(&mut s).unwrap();
    let p = Problem::new(s.lines().skip(1).map(|l| { let f: Vec<i64> = l.split(',').map(|x| x.parse().unwrap()).collect(); Buffer::new(f[1], f[2], f[3] as u64) }).collect());
    match a[1].as_str() {
        "greedy" => lab::greedy(&p),
        "exact" => lab::exact(&p, a.get(2).map(|x| x.parse().unwrap()).filter(|&c| c > 0), a.get(3).map_or(1.0, |x| x.parse().unwrap())),
        "plan" => {
            let t: f64 = a[2].parse().unwrap();
            let r = plan_with(&p, &Options { time: Some(std::time::Duration::from_secs_f64(t)), ..Options::default() }, &mut |b| println!("    {} {:.5} {:?}", b.peak, 1.0 + b.gap(), b.elapsed)).unwrap();
            println!("  FINAL {} lb {} {:.5} {} {:?}", r.peak, r.lower_bound, 1.0 + r.gap(), r.is_optimal(), r.elapsed);
        }
        _ => {}
    }
}
