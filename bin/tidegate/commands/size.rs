//! `tidegate size`: how many slots, and how long a queue.

use serde_json::json;
use tidegate_core::size::{Load, Size, TARGET_UTILISATION, size};

use crate::cli::SizeArgs;
use crate::exit::{Exit, Failure};
use crate::terminal::Output;

/// Does the sum.
pub(crate) fn run(arguments: &SizeArgs, output: &mut Output) -> Result<Exit, Failure> {
    let SizeArgs { rate, run_ms, slots, wait_ms } = *arguments;
    let sized = size(&Load { rate, run_ms, slots, wait_ms }).map_err(|bad| Failure::Usage(bad.to_string()))?;
    if output.wants_json() {
        let json = json!({
            "busy_slots": sized.busy_slots,
            "slots_needed": sized.slots_needed,
            "slots": sized.slots,
            "utilisation": sized.utilisation,
            "capacity_per_second": sized.capacity,
            "max_queued": sized.max_queued,
            "max_expected_wait_ms": sized.max_expected_wait_ms,
        });
        output.json_line(&json.to_string())?;
    } else {
        for line in lines(arguments, &sized) {
            output.line(&line)?;
        }
    }
    Ok(Exit::Done)
}

fn lines(asked: &SizeArgs, sized: &Size) -> Vec<String> {
    let Size { busy_slots, slots_needed, slots, utilisation, capacity, max_queued, max_expected_wait_ms } = *sized;
    let mut lines = vec![
        format!("busy slots            {busy_slots:.2}  ({} a second × {} ms)", asked.rate, asked.run_ms),
        format!("slots needed          {slots_needed}  (at most {:.0} % busy on average)", TARGET_UTILISATION * 100.0),
        format!("capacity              {capacity:.2} a second  ({slots} slots, {:.0} % busy)", utilisation * 100.0),
        format!("max_queued            {max_queued}  (worked off within {} ms)", asked.wait_ms),
        format!("max_expected_wait_ms  {max_expected_wait_ms}"),
    ];
    if utilisation >= 1.0 {
        lines.push(format!("{slots} slots never catch up with this load: what is more than they can do is refused"));
    }
    lines
}
